"""config.pbtxt: whatever the bytes, a config or a refusal that says where; and what is read is shown as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import config_pbtxt
from workers.repository import pbtxt
from workers.repository.refusal import ConfigRefused

CONFIGS = sorted((Path(__file__).parents[1] / "data" / "config_pbtxt").rglob("*.pbtxt"))
FIELDS = """name platform backend max_batch_size input output data_type dims reshape shape format label_filename
instance_group count kind gpus version_policy latest all specific versions num_versions dynamic_batching timeout_action
preferred_batch_size max_queue_delay_microseconds priority_levels default_queue_policy priority_queue_policy key value
parameters string_value optimization execution_accelerators model_warmup inputs sequence_batching ensemble_scheduling
default_model_filename preserve_ordering max_queue_size nobody""".split()  # noqa: SIM905 - one a line would be a page of its own
VALUES = """1 0 -1 64 007 0x1F 1e9 -2147483649 4294967296 9223372036854775808 99999999999999999999 nan inf true False t
TYPE_FP32 TYPE_STRING TYPE_INVALID KIND_CPU KIND_MODEL DELAY REJECT MODEL_INT8 "a" 'b' "\\n" "\\xff" "\\u00e9" "" "é"
"🙂" ${x} //""".split()  # noqa: SIM905 - as above
MARKS = [*"{}[]<>:;,#\n\"'\\", " ", "# c\n", "\t", "\r\n", "\x0c", "\0", "\u2028", "\ufeff"]

slow = settings(deadline=None)  # the first parse imports protobuf

tokens = st.sampled_from(FIELDS) | st.sampled_from(VALUES) | st.sampled_from(MARKS) | st.text(max_size=3)
scalars = st.tuples(st.sampled_from(FIELDS), st.sampled_from(VALUES)).map(": ".join)
blocks = st.recursive(
    scalars,
    lambda inner: st.tuples(
        st.sampled_from(FIELDS), st.sampled_from([" {%s}", ": {%s}", " [{%s}]", "<%s>"]), st.lists(inner, max_size=4)
    ).map(lambda found: found[0] + found[1] % "\n".join(found[2])),
    max_leaves=12,
)


@slow
@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_config_or_a_refusal(data: bytes) -> None:
    config_pbtxt(data)


@slow
@given(st.lists(tokens, max_size=40).map(" ".join))
def test_any_tokens_end_in_a_config_or_a_refusal(text: str) -> None:
    config_pbtxt(text.encode("utf-8", "replace"))


@slow
@given(st.lists(blocks, max_size=8).map("\n".join))
def test_anything_like_a_config_ends_in_a_config_or_a_refusal(text: str) -> None:
    config_pbtxt(text.encode())


@slow
@given(st.sampled_from(CONFIGS), st.data())
def test_a_real_file_with_something_changed_ends_in_a_config_or_a_refusal(path: Path, data: st.DataObject) -> None:
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = min(len(content), start + data.draw(st.integers(0, 20)))
    other = tokens.map(lambda token: token.encode("utf-8", "replace")) | st.binary(max_size=6)
    config_pbtxt(content[:start] + data.draw(other) + content[end:])


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("input { data_type: 99999999999 }", "1:20: Value out of range: 99999999999, in 'input {"),
        ('name: "m"\ninput {\n  data_type: -9999999999\n}', "3:14: Value out of range"),
        ("optimization { priority: 99999999999 }", "1:26: Value out of range"),
    ],
)
def test_an_enum_beyond_32_bits_is_refused_where_it_stands(text: str, where: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        pbtxt.parse(text, "f")
    assert str(refused.value).startswith(f"f:{where}")


@pytest.mark.parametrize("text", ['name: "' + "a" * 10_000, 'name: "\\x' + "a" * 10_000 + '"', "a" * 10_000])
def test_a_refusal_quotes_only_the_start_of_a_long_line(text: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        pbtxt.parse(text, "f")
    assert len(str(refused.value)) < 700
