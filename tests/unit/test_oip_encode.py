"""OIP response bodies: always complete, always readable, whatever the numbers are."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import orjson
import pytest

from contract.errors import InvalidInput, ModelFailed
from contract.messages import ParameterValue, TensorHead
from contract.tensors import NUMPY_TYPES, from_array
from gateway.core import Answer
from gateway.oip.encode import encode
from gateway.oip.request import BINARY_FORM, JSON_FORM, OutputForm

TEXTS = ["plain", "naïve", "日本語", "🙂", "a\u0000b", "’"]  # noqa: RUF001 - the quote of the report


def answer(*tensors: tuple[TensorHead, bytes], parameters: dict[str, ParameterValue] | None = None) -> Answer:
    heads = tuple(head for head, _ in tensors)
    return Answer("m", "3", heads, [memoryview(raw) for _, raw in tensors], parameters or {}, 1, 2, 1)


def floats(*values: float, name: str = "OUT") -> tuple[TensorHead, bytes]:
    return from_array(name, np.array([values], np.float32))


def text_of(encoded_answer: Answer, form: OutputForm = JSON_FORM, caller_id: str = "") -> bytes:
    encoded = encode(encoded_answer, caller_id, form)
    whole = b"".join(encoded.parts)
    assert len(whole) == encoded.num_bytes
    return whole if encoded.header_length is None else whole[: encoded.header_length]


def test_a_response_names_model_version_and_the_callers_id() -> None:
    response = json.loads(text_of(answer(floats(1.5, 2)), caller_id="a-1"))
    assert response == {
        "id": "a-1",
        "model_name": "m",
        "model_version": "3",
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]}],
    }


def test_a_response_without_a_callers_id_has_none() -> None:
    assert "id" not in json.loads(text_of(answer(floats(1))))


def test_non_finite_floats_are_bare_literals_in_a_complete_body() -> None:
    text = text_of(answer(floats(1, math.nan, math.inf, -math.inf), floats(7, name="null")))
    assert b'"data":[1.0,NaN,Infinity,-Infinity]' in text
    data = json.loads(text)["outputs"][0]["data"]
    assert math.isnan(data[1])
    assert data[2:] == [math.inf, -math.inf]


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_every_float_type_writes_its_non_finite_values(datatype: str) -> None:
    bits = {"FP16": [0x3C00, 0x7E00, 0xFC00], "BF16": [0x3F80, 0x7FC0, 0xFF80]}
    if datatype in bits:
        raw = np.array(bits[datatype], "<u2").tobytes()
    else:
        raw = np.array([1, math.nan, -math.inf], NUMPY_TYPES[datatype]).tobytes()
    assert b'"data":[1.0,NaN,-Infinity]' in text_of(answer((TensorHead("OUT", datatype, (3,)), raw)))


def test_the_word_null_in_a_text_changes_nothing() -> None:
    raw = from_array("OUT", np.array([b"null", b"NaN"], object))
    assert json.loads(text_of(answer(raw)))["outputs"][0]["data"] == ["null", "NaN"]


def test_non_finite_parameters_are_bare_literals_too() -> None:
    text = text_of(answer(floats(1), parameters={"score": math.nan, "top": -math.inf, "n": 3}))
    assert b'"parameters":{"score":NaN,"top":-Infinity,"n":3}' in text


def test_fp32_is_written_shortest_and_read_back_exactly() -> None:
    values = np.array([0.1, 1 / 3, 3.4028235e38, 1e-45, 16777216, -0.0], np.float32)
    text = text_of(answer(from_array("OUT", values)))
    assert b"[0.1,0.33333334," in text
    assert np.array(json.loads(text)["outputs"][0]["data"], np.float32).tobytes() == values.tobytes()


@pytest.mark.parametrize("datatype", ["INT64", "UINT64", "INT8", "UINT8"])
def test_integers_are_written_at_both_ends_of_their_range(datatype: str) -> None:
    info = np.iinfo(NUMPY_TYPES[datatype])
    text = text_of(answer(from_array("OUT", np.array([info.min, info.max], NUMPY_TYPES[datatype]))))
    assert json.loads(text)["outputs"][0]["data"] == [info.min, info.max]


def test_booleans_are_written_as_true_and_false() -> None:
    assert b'"data":[true,false]' in text_of(answer(from_array("OUT", np.array([True, False]))))


def test_bytes_are_written_as_the_text_they_are() -> None:
    tensor = from_array("OUT", np.array([t.encode() for t in TEXTS], object))
    assert json.loads(text_of(answer(tensor)))["outputs"][0]["data"] == TEXTS


def test_bytes_that_are_no_text_are_refused_as_json_and_pass_in_binary() -> None:
    tensor = from_array("OUT", np.array([b"\xff\xfe"], object))
    with pytest.raises(InvalidInput, match=r"'OUT'.*UTF-8.*binary_data"):
        encode(answer(tensor), "", JSON_FORM)
    assert encode(answer(tensor), "", BINARY_FORM).parts[1] == tensor[1]


def test_binary_outputs_follow_the_json_in_order() -> None:
    encoded = encode(answer(floats(1, name="A"), floats(2, 3, name="B")), "", BINARY_FORM)
    assert encoded.header_length is not None
    whole = b"".join(encoded.parts)
    outputs = json.loads(whole[: encoded.header_length])["outputs"]
    assert [o["parameters"]["binary_data_size"] for o in outputs] == [4, 8]
    assert whole[encoded.header_length :] == struct.pack("<3f", 1, 2, 3)


def test_each_output_has_the_form_that_was_asked_for() -> None:
    form = OutputForm(is_binary=True, by_name={"A": False})
    encoded = encode(answer(floats(1, name="A"), floats(2, name="B")), "", form)
    first, second = json.loads(b"".join(encoded.parts)[: encoded.header_length])["outputs"]
    assert first["data"] == [1.0]
    assert second["parameters"] == {"binary_data_size": 4}


def test_a_tensor_may_lie_at_any_offset_and_be_of_any_size() -> None:
    for size in (3, 5000):
        values = np.arange(size, dtype=np.float64)
        view = memoryview(b"x" + values.tobytes())[1:]
        text = text_of(Answer("m", "1", (TensorHead("OUT", "FP64", (size,)),), [view], {}, 1, 1, 1))
        assert orjson.loads(text)["outputs"][0]["data"] == values.tolist()


def test_an_empty_tensor_is_an_empty_list() -> None:
    assert b'"data":[]' in text_of(answer((TensorHead("OUT", "FP32", (1, 0)), b"")))


@pytest.mark.parametrize(("datatype", "raw"), [("FP32", b"abc"), ("BYTES", b"\x09\0\0\0abc")])
def test_bytes_that_are_no_tensor_are_the_models_fault(datatype: str, raw: bytes) -> None:
    with pytest.raises(ModelFailed, match="'OUT'"):
        encode(answer((TensorHead("OUT", datatype, (1,)), raw)), "", JSON_FORM)
