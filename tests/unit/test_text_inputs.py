"""A model with a tokenizer takes `text` in place of its ids; everything else about its inputs stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import InvalidInput
from contract.messages import Layout, TensorHead
from contract.model_config import ModelCard, ModelConfig, TensorSpec
from contract.tensors import decode_elements
from contract.text import takes_text
from gateway.http.metadata import model_metadata
from gateway.oip.decode import decode
from workers.checks import LayoutChecks
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.refusal import ConfigRefused

IDS = TensorSpec("input_ids", "INT64", (-1,), is_ragged=True)
MASK = TensorSpec("attention_mask", "INT64", (-1,), is_ragged=True)
WEIGHT = TensorSpec("weight", "FP32", (1,))


def model(*inputs: TensorSpec, **parameters: str) -> ModelConfig:
    parameters.setdefault("tokenizer", "tokenizer.json")
    return ModelConfig("m", "onnxruntime", max_batch_size=4, inputs=inputs or (IDS, MASK), parameters=parameters)


def request(*tensors: dict[str, Any]) -> bytes:
    return json.dumps({"inputs": list(tensors)}).encode()


def text(*texts: str, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": shape or [len(texts)], "data": list(texts)}


def heads(*tensors: tuple[str, str, tuple[int, ...]]) -> Layout:
    return Layout(tuple(TensorHead(*t) for t in tensors))


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_text_is_taken_in_place_of_the_ids(shape: list[int]) -> None:
    decoded = decode(request(text("one", "zwei", shape=shape)), None, ModelCard(model(), ()))
    assert decoded.rows == 2
    assert [head.name for head in decoded.heads] == ["text"]
    assert decode_elements("text", decoded.data[0], 2) == [b"one", b"zwei"]
    checked = LayoutChecks(model()).check(Layout(decoded.heads))
    assert checked.error is None
    assert (checked.rows, checked.num_bytes) == (2, -1)


def test_inputs_that_are_no_ids_are_needed_beside_the_text() -> None:
    card = ModelCard(model(IDS, MASK, WEIGHT), ())
    weight = {"name": "weight", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}
    assert decode(request(text("a"), weight), None, card).rows == 1
    with pytest.raises(InvalidInput, match="'weight': missing"):
        decode(request(text("a")), None, card)
    assert "weight" in str(LayoutChecks(card.config).check(heads(("text", "BYTES", (1,)))).error)


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (text("a", "b", shape=[1, 2]), r"\[1, 2\]"),
        (text("a", shape=[1, 1, 1]), "rank 3"),
        (text(*"abcde"), "takes 1 to 4"),
        ({**text("a"), "datatype": "FP32", "data": [1.0]}, "datatype is 'FP32', the model wants 'BYTES'"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_by_both_sides(tensor: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        decode(request(tensor), None, ModelCard(model(), ()))
    checked = LayoutChecks(model()).check(heads(("text", tensor["datatype"], tuple(tensor["shape"]))))
    assert "'text'" in str(checked.error)


def test_ids_beside_the_text_are_refused_by_both_sides() -> None:
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 1], "data": [5]}
    with pytest.raises(InvalidInput, match=r"'input_ids'.* has inputs 'text'"):
        decode(request(text("a"), ids), None, ModelCard(model(), ()))
    both = heads(("text", "BYTES", (1,)), ("input_ids", "INT64", (1, 1)))
    assert "'input_ids'" in str(LayoutChecks(model()).check(both).error)


def test_a_model_without_a_tokenizer_has_no_input_text() -> None:
    config = ModelConfig("m", "python", max_batch_size=4, inputs=(IDS, MASK))
    with pytest.raises(InvalidInput, match="'text': model 'm' has inputs"):
        decode(request(text("a")), None, ModelCard(config, ()))
    assert "missing" in str(LayoutChecks(config).check(heads(("text", "BYTES", (1,)))).error)


def test_the_parameter_is_a_python_models_own_where_it_takes_no_ids() -> None:
    assert not takes_text(ModelConfig("m", "python", parameters={"tokenizer": "bert"}))


def test_metadata_shows_the_models_own_inputs_and_tells_of_the_text() -> None:
    found = model_metadata(ModelCard(model(), ()))
    assert [tensor["name"] for tensor in found["inputs"]] == ["input_ids", "attention_mask"]
    assert found["parameters"] == {"text_input": "text"}
    assert "parameters" not in model_metadata(ModelCard(ModelConfig("m", "python", inputs=(IDS,)), ()))


# -------- the parameters
ID_INPUTS = 'input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] } ] '
OUTPUT = (
    'output [ { name: "e" data_type: TYPE_FP32 dims: [ 8 ] }, { name: "label" data_type: TYPE_INT64 dims: [ 1 ] } ] '
)


def parameters(**values: str) -> str:
    return " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in values.items())


def read(pb: str) -> ModelConfig:
    return to_model_config(pbtxt.parse(f'backend: "onnxruntime" {OUTPUT} {pb}', "f"), "m")


def test_good_parameters_are_taken() -> None:
    found = read(
        f"max_batch_size: 4 {ID_INPUTS}"
        + parameters(tokenizer="t.json", max_tokens="128", truncation="none", embedding_output="e")
    )
    assert takes_text(found)


@pytest.mark.parametrize(
    ("pb", "named"),
    [
        (ID_INPUTS + parameters(tokenizer="t.json"), "max_batch_size is 0"),
        ("max_batch_size: 4 " + ID_INPUTS + parameters(tokenizer="../t.json"), "leads out"),
        ("max_batch_size: 4 " + ID_INPUTS + parameters(tokenizer="t.json", max_tokens="-5"), "'-5'"),
        ("max_batch_size: 4 " + ID_INPUTS + parameters(tokenizer="t.json", max_tokens="1"), "above 1"),
        ("max_batch_size: 4 " + ID_INPUTS + parameters(tokenizer="t.json", truncation="both"), "'both'"),
        ("max_batch_size: 4 " + ID_INPUTS + parameters(max_tokens="5"), "needs parameters['tokenizer']"),
        ("max_batch_size: 4 " + parameters(tokenizer="t.json"), "needs an input 'input_ids'"),
        (
            'max_batch_size: 4 input { name: "input_ids" data_type: TYPE_FP32 dims: -1 }' + parameters(tokenizer="t"),
            "FP32 [-1]",
        ),
        (
            'max_batch_size: 4 input { name: "input_ids" data_type: TYPE_INT64 dims: [ 2, -1 ] }'
            + parameters(tokenizer="t"),
            "[2, -1]",
        ),
        (
            'max_batch_size: 4 input { name: "input_ids" data_type: TYPE_INT64 dims: 64 }'
            + parameters(tokenizer="t", max_tokens="65"),
            "takes 64",
        ),
        (
            f'max_batch_size: 4 {ID_INPUTS} input {{ name: "text" data_type: TYPE_STRING dims: 1 }}'
            + parameters(tokenizer="t"),
            "has one of that name",
        ),
        (
            f'max_batch_size: 4 {ID_INPUTS} input {{ name: "attention_mask" data_type: TYPE_INT64 dims: 64 }}'
            + parameters(tokenizer="t"),
            "unlike dims",
        ),
        (parameters(embedding_output="label"), "'label'"),
        (parameters(embedding_output="nothing"), "'nothing'"),
    ],
)
def test_a_parameter_that_cannot_work_is_refused_by_name_and_value(pb: str, named: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(pb)
    assert named in str(refused.value)
