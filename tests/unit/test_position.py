"""A refusal's field is found where it stands in the config, in whatever style it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.repository.position import position_of
from workers.repository.read import read_model

TEXT = """name: "m"  # a comment with input { and name: "x"
backend : "python"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [ 1 ] },
  {
    name: 'B' data_type: TYPE_FP32
    dims: [ 0 ]
  }
]
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
output < name: "Z" data_type: TYPE_FP32 dims: 1 reshape: { shape: [ 2 ] } >
dynamic_batching {
  preferred_batch_size: [ 4, 99 ]
  default_queue_policy { timeout_action: DELAY }
}
parameters { key: "one" value { string_value: "{ retry" } }
parameters { key: "retry" value: { string_value: "always" } }
instance_group [ { count: 1 }, { count: 1 kind: KIND_MODEL } ]
"""


@pytest.mark.parametrize(
    ("sentence", "starts"),
    [
        ("max_batch_size = -1, it can't be negative", "max_batch_size: 8"),
        ("backend = 'x' is", "backend :"),
        ("input 'B': dims = [0]: 0 is neither", "dims: [ 0 ]"),
        ("input[1] has no name", "{\n    name: 'B'"),
        ("input 'A': data_type = TYPE_INVALID, it", "data_type: TYPE_FP32 dims: [ 1 ]"),
        ("output 'Z': reshape = [2] has another", "reshape: {"),
        ("output 'Y' is given more than once", 'output { name: "Y"'),
        ("output[1].reshape.shape = [2] is not", "shape: [ 2 ]"),
        ("dynamic_batching.preferred_batch_size has 99, it", "preferred_batch_size"),
        ("dynamic_batching: timeout_action = X, it must", "dynamic_batching {"),
        ("dynamic_batching.default_queue_policy.timeout_action = X", "timeout_action"),
        ("parameters['retry'] = 'always', it can", 'parameters { key: "retry"'),
        ("instance_group[1].kind = KIND_MODEL is", "kind: KIND_MODEL"),
        ("instance_group[0].gpus = [1] is", "{ count: 1 }"),
    ],
)
def test_the_deepest_field_that_is_there_is_found(sentence: str, starts: str) -> None:
    found = position_of(sentence, TEXT)
    assert found is not None
    line, column = found
    rest = TEXT.split("\n", line - 1)[-1][column - 1 :]
    assert rest.startswith(starts)


@pytest.mark.parametrize("sentence", ["", "no version to load (1: x)", "neither backend nor platform is set", "Zzz"])
def test_a_sentence_without_a_field_has_no_position(sentence: str) -> None:
    assert position_of(sentence, TEXT) is None


@given(st.text(max_size=60), st.text(alphabet="{}[]<>\"'\\#:\n ab", max_size=80))
def test_any_text_has_a_position_in_it_or_none(sentence: str, text: str) -> None:
    found = position_of(sentence, text)
    if found is not None:
        line, column = found
        assert 1 <= column <= len(text.split("\n")[line - 1])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('backend: "python"\nmax_batch_size: -2\n', "m/config.pbtxt:2:1: max_batch_size = -2"),
        ('backend: "python"\n\n  sequence_batching { }', "m/config.pbtxt:3:3: sequence_batching = {} is not supported"),
        ('backend: "python" input { name: "A" data_type: TYPE_FP32 dims: 0 }', "m/config.pbtxt:1:58: input 'A': dims"),
        ('backend: "python"\nname: "other"', "m/config.pbtxt:2:1: name = 'other'"),
        ('backend: "python"\nmax_batch_size: x', "m/config.pbtxt:2:17: Couldn't parse integer: x"),
        ("", "m/config.pbtxt: neither backend nor platform"),
    ],
)
def test_the_reason_in_the_index_names_file_line_column_and_field(tmp_path: Path, text: str, told: str) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "other.bin").write_bytes(b"")
    if "backend" in text:
        (model / "1" / "model.py").write_text("")
    (model / "config.pbtxt").write_text(text)
    assert read_model(model).reason.startswith(told)
