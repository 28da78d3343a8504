"""Texts become what a caller who tokenises would have sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contract.errors import InvalidInput, TextTooLong
from contract.messages import Layout, TensorHead
from contract.tensors import to_array
from tests.support.text_kit import encoder, text_model, text_request, word_tokenizer
from workers.backends.base import LoadFailed
from workers.text.encode import MAX_TEXT_BYTES, EncodedText, TextEncoder
from workers.text.load import load_encoder


def arrays(found: EncodedText) -> dict[str, list[list[int]]]:
    heads = found.layout.tensors
    return {head.name: to_array(head, part).tolist() for head, part in zip(heads, found.data, strict=True)}


def encoded(own: TextEncoder, *texts: str | bytes) -> EncodedText:
    return own.encode(*text_request(*texts))


def test_rows_are_padded_to_the_longest_and_masked() -> None:
    found = encoded(encoder(), "a river flows", "stream")
    assert arrays(found) == {
        "input_ids": [[2, 4, 5, 7, 3], [2, 6, 3, 0, 0]],
        "attention_mask": [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
    }
    assert (found.num_tokens, found.num_truncated) == (8, 0)


def test_only_the_models_own_inputs_are_filled_in_its_own_datatype() -> None:
    config = text_model(datatype="INT32", inputs=("token_type_ids", "input_ids"))
    found = encoded(encoder(config), "a river")
    assert arrays(found) == {"token_type_ids": [[0, 0, 0, 0]], "input_ids": [[2, 4, 5, 3]]}
    assert {head.datatype for head in found.layout.tensors} == {"INT32"}


def test_a_fixed_width_is_filled() -> None:
    found = encoded(encoder(text_model(dims=6)), "a river")
    assert arrays(found)["input_ids"] == [[2, 4, 5, 3, 0, 0]]
    longer = encoded(encoder(text_model(dims=6)), "a river flows a river flows")
    assert arrays(longer)["input_ids"] == [[2, 4, 5, 7, 4, 3]]


def test_other_inputs_stay_behind_the_ids() -> None:
    layout, data = text_request("a")
    weight = np.array([[0.5]], np.float32).tobytes()
    with_weight = Layout((TensorHead("weight", "FP32", (1, 1)), *layout.tensors))
    found = encoder().encode(with_weight, [weight, *data])
    assert arrays(found) == {"input_ids": [[2, 4, 3]], "attention_mask": [[1, 1, 1]], "weight": [[0.5]]}


def test_an_empty_text_has_the_special_tokens_only() -> None:
    assert arrays(encoded(encoder(), ""))["input_ids"] == [[2, 3]]


def test_a_text_that_becomes_nothing_is_one_masked_token() -> None:
    own = encoder()
    own.tokenizer.post_processor = None  # type: ignore[attr-defined]
    found = encoded(own, "")
    assert arrays(found) == {"input_ids": [[0]], "attention_mask": [[0]]}
    assert found.num_tokens == 0


@pytest.mark.parametrize(("side", "kept"), [("right", [2, 4, 5, 3]), ("left", [2, 5, 7, 3])])
def test_a_longer_text_is_cut_and_counted_as_cut(side: str, kept: list[int]) -> None:
    found = encoded(encoder(max_tokens="4", truncation=side), "a river flows", "a river")
    assert arrays(found)["input_ids"][0] == kept
    assert (found.num_tokens, found.num_truncated) == (8, 1)


def test_a_longer_text_is_refused_by_its_row_where_nothing_is_cut() -> None:
    own = encoder(max_tokens="4", truncation="none")
    assert encoded(own, "a river").num_tokens == 4
    with pytest.raises(TextTooLong, match="row 1: 5 tokens, model 'm' reads at most 4"):
        encoded(own, "a", "a river flows")


def test_a_text_that_is_not_utf8_or_too_large_is_refused_by_its_row() -> None:
    with pytest.raises(InvalidInput, match="row 1: byte 1 is not UTF-8"):
        encoded(encoder(), "a", b"a\xff")
    with pytest.raises(InvalidInput, match=f"row 0: {MAX_TEXT_BYTES + 1} bytes"):
        encoded(encoder(), "a" * (MAX_TEXT_BYTES + 1))


def test_ids_that_the_tokenizer_does_not_have_are_refused_by_value() -> None:
    layout = Layout((TensorHead("input_ids", "INT64", (1, 2)),))
    encoder().check_ids(layout, [np.array([0, 7], np.int64).tobytes()])
    for wrong in (8, -1, 2**40):
        with pytest.raises(InvalidInput, match=f"id {wrong}, the tokenizer of model 'm' has ids 0 to 7"):
            encoder().check_ids(layout, [np.array([3, wrong], np.int64).tobytes()])


# -------- loading
async def test_the_versions_own_file_goes_before_the_models(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    other = word_tokenizer()
    other.post_processor = None
    other.save(str(tmp_path / "2" / "tokenizer.json"))
    first = await load_encoder(text_model(), tmp_path, "1")
    second = await load_encoder(text_model(), tmp_path, "2")
    assert first is not None
    assert second is not None
    assert [encoded(own, "a").num_tokens for own in (first, second)] == [3, 1]


async def test_the_files_own_limit_counts_where_the_config_has_none(tmp_path: Path) -> None:
    own = word_tokenizer()
    own.enable_truncation(3, direction="left")
    own.enable_padding(length=50)
    own.save(str(tmp_path / "tokenizer.json"))
    found = await load_encoder(text_model(), tmp_path, "1")
    assert found is not None
    assert arrays(encoded(found, "a river"))["input_ids"] == [[2, 5, 3]]


@pytest.mark.parametrize(
    ("content", "parameters", "named"),
    [
        (None, {}, "neither in the version's folder '1' nor in the model's"),
        ("{}", {}, "'tokenizer.json' can't be read"),
        ("good", {"truncation": "left"}, "needs max_tokens"),
    ],
)
async def test_a_tokenizer_that_cannot_be_used_is_a_reason(
    tmp_path: Path, content: str | None, parameters: dict[str, str], named: str
) -> None:
    if content == "good":
        word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    elif content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(LoadFailed, match=named):
        await load_encoder(text_model(**parameters), tmp_path, "1")


async def test_a_model_without_a_tokenizer_needs_none(tmp_path: Path) -> None:
    config = text_model()
    config.parameters.clear()
    assert await load_encoder(config, tmp_path, "1") is None
