"""Which models embed, and how a call's inputs become internal requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ModelFailed
from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import decode_elements, to_array
from gateway.core import Answer
from gateway.openai.embedder import PORTION_TOKENS, Tensors, embedder
from gateway.openai.errors import ApiRefused

IDS = TensorSpec("input_ids", "INT64", (-1,))
MASK = TensorSpec("attention_mask", "INT64", (-1,))
TYPES = TensorSpec("token_type_ids", "INT32", (-1,))
TEXT = TensorSpec("TEXT", "BYTES", (1,))
VECTOR = TensorSpec("sentence_embedding", "FP32", (8,))
LOGITS = TensorSpec("logits", "FP32", (3,))


def model(
    *inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = (VECTOR,), max_batch_size: int = 4, **parameters: str
) -> ModelConfig:
    return ModelConfig(
        "m", "python", max_batch_size=max_batch_size, inputs=inputs, outputs=outputs, parameters=parameters
    )


MINILM = model(IDS, MASK, tokenizer="t.json", max_tokens="6")


def arrays(found: Tensors) -> dict[str, list[list[int]]]:
    return {head.name: to_array(head, part).tolist() for head, part in zip(found.heads, found.data, strict=True)}


def test_a_model_with_a_tokenizer_takes_text_and_tokens() -> None:
    own = embedder(MINILM)
    assert (own.text_input, [spec.name for spec in own.ids]) == ("text", ["input_ids", "attention_mask"])
    texts = own.tensors(["naïve", "b"])
    assert texts.heads == (TensorHead("text", "BYTES", (2, 1)),)
    assert decode_elements("text", texts.data[0], 2) == ["naïve".encode(), b"b"]
    assert (texts.sizes, texts.num_tokens) == ((len(texts.data[0]),), 0)
    tokens = own.tensors([[5, 6, 7], [8]])
    assert arrays(tokens) == {
        "input_ids": [[5, 6, 7], [8, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
    }
    assert (tokens.sizes, tokens.num_tokens) == ((), 4)


def test_token_types_are_zeros_in_their_own_datatype() -> None:
    found = embedder(model(IDS, TYPES, tokenizer="t.json")).tensors([[5, 6]])
    assert arrays(found) == {"input_ids": [[5, 6]], "token_type_ids": [[0, 0]]}
    assert found.heads[1].datatype == "INT32"


def test_a_fixed_width_is_filled_and_is_the_most() -> None:
    own = embedder(model(TensorSpec("input_ids", "INT64", (4,)), tokenizer="t.json"))
    assert arrays(own.tensors([[5]])) == {"input_ids": [[5, 0, 0, 0]]}
    with pytest.raises(ApiRefused, match="input: 5 tokens, model 'm' reads at most 4"):
        own.check([[1] * 5], ["input"])


def test_a_model_that_reads_text_itself_takes_text_only() -> None:
    own = embedder(model(TEXT))
    assert own.text_input == "TEXT"
    own.check(["a"], ["input"])
    with pytest.raises(ApiRefused, match="takes text, no token arrays") as refused:
        own.check([[1]], ["input"])
    assert refused.value.param == "input"


def test_a_model_without_a_tokenizer_takes_tokens_only() -> None:
    own = embedder(model(IDS, MASK))
    own.check([[1]], ["input"])
    with pytest.raises(ApiRefused, match="no tokenizer"):
        own.check(["a"], ["input"])


def test_tokens_over_the_models_limit_are_refused_with_openais_code() -> None:
    own = embedder(MINILM)
    own.check([[1] * 6], ["input"])
    with pytest.raises(ApiRefused, match=r"input\[1\]: 7 tokens, model 'm' reads at most 6") as refused:
        own.check([[1], [1] * 7], ["input[0]", "input[1]"])
    assert refused.value.api_code == "context_length_exceeded"


def test_the_vector_is_the_output_that_is_called_so_or_named() -> None:
    tokens = TensorSpec("token_embeddings", "FP32", (-1, 8))
    assert embedder(model(TEXT, outputs=(tokens, LOGITS, VECTOR))).output is VECTOR
    assert embedder(model(TEXT, outputs=(LOGITS, VECTOR), embedding_output="logits")).output is LOGITS


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (model(TEXT, outputs=(LOGITS,)), "does not embed: it has outputs 'logits'"),
        (model(TEXT, outputs=()), "it has outputs none"),
        (model(TEXT, outputs=(VECTOR, TensorSpec("embedding2", "FP32", (4,)))), "does not embed"),
        (model(TEXT, outputs=(TensorSpec("embedding", "INT64", (4,)),)), "does not embed"),
        (model(TEXT, LOGITS), "neither text nor tokens"),
        (model(IDS, LOGITS, tokenizer="t.json"), "neither text nor tokens"),
        (model(TensorSpec("input_ids", "INT64", (2, -1))), "neither text nor tokens"),
        (model(TEXT, max_batch_size=0), "neither text nor tokens"),
    ],
)
def test_a_model_that_does_not_embed_is_refused_with_what_is_missing(config: ModelConfig, named: str) -> None:
    with pytest.raises(ApiRefused, match=named) as refused:
        embedder(config)
    assert refused.value.param == "model"


def test_more_dimensions_than_there_are_are_refused() -> None:
    own = embedder(MINILM)
    own.check_dimensions(8, 8)
    own.check_dimensions(None, 8)
    own.check_dimensions(9, -1)
    with pytest.raises(ApiRefused, match="dimensions is 9, model 'm' has 8"):
        own.check_dimensions(9, 8)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=100), st.booleans(), st.integers(1, 40))
def test_every_input_is_in_one_portion_and_no_portion_is_too_large(
    lengths: list[int], are_tokens: bool, max_rows: int
) -> None:
    own = embedder(model(IDS, MASK, max_batch_size=max_rows, tokenizer="t.json"))
    inputs = [[1] * n for n in lengths] if are_tokens else ["a" * n for n in lengths]
    portions = own.portions(inputs)
    assert sorted(index for portion in portions for index in portion) == list(range(len(lengths)))
    for portion in portions:
        assert len(portion) <= max_rows
        if are_tokens and len(portion) > 1:
            assert len(portion) * max(lengths[index] for index in portion) <= PORTION_TOKENS


def test_texts_of_one_length_go_together_and_a_models_own_text_by_rows_alone() -> None:
    own = embedder(model(IDS, max_batch_size=8, tokenizer="t.json"))
    assert own.portions(["a" * 2000, "b", "a" * 2000, "c"]) == [[0], [2], [1, 3]]
    assert embedder(model(TEXT, max_batch_size=2)).portions(["a" * 9999, "b", "c"]) == [[0, 1], [2]]


# -------- answers
def answered(array: np.ndarray, name: str = "sentence_embedding", **parameters: int) -> Answer:
    datatype = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}[array.dtype.name]
    head = TensorHead(name, datatype, array.shape)
    return Answer("m", "1", (head,), [memoryview(array.tobytes())], dict(parameters), 0, 0, len(array))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_vectors_are_fp32_whatever_the_model_answers(dtype: type) -> None:
    array = np.array([[0.5, 0.25], [1, 2]], dtype)
    found = embedder(MINILM).vectors(answered(array, num_tokens=9, num_truncated=1), 2, 0)
    assert found.array.dtype == np.float32
    assert found.array.tolist() == array.tolist()
    assert (found.num_tokens, found.num_truncated) == (9, 1)


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (answered(np.zeros((1, 2), np.float32), "other"), "no output 'sentence_embedding'"),
        (answered(np.zeros((3, 2), np.float32)), r"shape \[3, 2\] for 1 inputs"),
        (answered(np.zeros((1, 2, 2), np.float32)), r"shape \[1, 2, 2\]"),
        (answered(np.array([[0, np.nan]], np.float32)), "NaN or infinity"),
        (answered(np.array([[0, np.inf]], np.float32)), "NaN or infinity"),
    ],
)
def test_an_answer_that_is_no_vector_is_the_models_fault(answer: Answer, named: str) -> None:
    with pytest.raises(ModelFailed, match=named):
        embedder(MINILM).vectors(answer, 1, 0)
