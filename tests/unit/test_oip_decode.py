"""Requests that cannot be: refused by the name of input and field, before anything is allocated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.oip.decode import decode
from tests.support.oip_kit import IDENT_I32, TWO, body, card, flat, refusal, tensor

# ------------------------------------------------------------------ O-01 malformed JSON requests


@pytest.mark.parametrize(
    "shape",
    ["-1", None, {}, [-1, 2], [1.5, 2], [1.0, 2], ["1", "2"], [True, 2], [None, 2], [[1], 2], [], ..., 7, False],
)
def test_a_malformed_shape_is_refused_and_names_input_and_field(shape: Any) -> None:
    message = refusal(body(tensor(shape=shape)))
    assert "'IN'" in message
    assert "shape" in message


@pytest.mark.parametrize("inputs", [{}, "x", None, 3, True, ...])
def test_inputs_that_are_no_array_are_refused_by_name(inputs: Any) -> None:
    request = {} if inputs is ... else {"inputs": inputs}
    assert "'inputs'" in refusal(json.dumps(request).encode())


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"42", b"null", b"true", b"NaN", b"[NaN]"])
def test_a_body_that_is_no_object_is_refused_and_says_what_it_is(raw: bytes) -> None:
    assert "must be a JSON object with the field 'inputs'" in refusal(raw)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"inputs":[}', b"NaNa", b'{"inputs": [Infinity}', b"\x00"])
def test_a_body_that_is_no_json_is_refused(raw: bytes) -> None:
    assert "malformed" in refusal(raw)


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b'{"a":' * 100_000, b'{"inputs":[' + b"[" * 100_000, b"[NaN," * 90_000]
)
def test_json_nested_beyond_reason_is_refused(raw: bytes) -> None:
    assert "too deep" in refusal(raw)


@pytest.mark.parametrize("element", [None, 3, "x", [], True])
def test_an_input_that_is_no_object_is_refused_by_its_position(element: Any) -> None:
    assert refusal(body(tensor(), element)).startswith("inputs[1]")


@pytest.mark.parametrize("name", [None, 5, ..., ["IN"]])
def test_an_input_without_a_proper_name_is_refused_by_its_position(name: Any) -> None:
    message = refusal(body(tensor(name=name)))
    assert message.startswith("inputs[0]")
    assert "name" in message


@pytest.mark.parametrize("field", ["datatype", "data", "parameters"])
@pytest.mark.parametrize("value", [7, True, 1.5])
def test_a_field_of_the_wrong_type_is_refused_by_input_and_field(field: str, value: Any) -> None:
    message = refusal(body(tensor(**{field: value})))
    assert "'IN'" in message
    assert field in message


def test_an_unknown_input_is_refused_and_the_known_ones_are_named() -> None:
    message = refusal(body(tensor(name="X"), tensor()))
    assert "'X'" in message
    assert "'IN'" in message


def test_an_input_given_twice_is_refused() -> None:
    assert "'IN' is given twice" in refusal(body(tensor(), tensor()))


def test_every_missing_input_is_named_and_an_optional_one_is_not() -> None:
    message = refusal(body(tensor(name="C", datatype="INT8", shape=[1, 1], data=[1])), TWO)
    assert "'A', 'B'" in message
    assert "'C'" not in message


def test_an_optional_input_may_be_left_out() -> None:
    decoded = decode(body(tensor(name="B"), tensor(name="A")), None, card(TWO))
    assert [head.name for head in decoded.heads] == ["B", "A"]


def test_a_datatype_unlike_the_models_is_refused_with_both() -> None:
    message = refusal(body(tensor(datatype="INT32")))
    assert "'INT32'" in message
    assert "'FP32'" in message


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ([2], "rank 1"),
        ([1, 1, 2], "rank 2: [-1, -1]"),
        ([0, 2], "1 to 8"),
        ([9, 2], "1 to 8"),
        ([1, 10**30], "elements"),
    ],
)
def test_a_shape_the_model_does_not_take_is_refused_with_what_it_takes(shape: list[int], told: str) -> None:
    message = refusal(body(tensor(shape=shape)))
    assert "'IN'" in message
    assert told in message


def test_a_fixed_dimension_is_held_against_the_config() -> None:
    message = refusal(body(tensor(datatype="INT32", shape=[1, 5], data=[1] * 5)), IDENT_I32)
    assert "[1, 5]" in message
    assert "[-1, 4]" in message


def test_inputs_with_unlike_batch_dimensions_are_refused_with_both() -> None:
    message = refusal(body(tensor(name="A"), tensor(name="B", shape=[2, 2], data=[1, 2, 3, 4])), TWO)
    assert "'B'" in message
    assert "batch dimension 2" in message
    assert "'A' has 1" in message


def test_a_shape_whose_product_overflows_memory_is_refused_before_anything_is_allocated() -> None:
    three = flat("FP32", (-1, -1, -1))
    for huge, told in (([2**62] * 3, "elements"), ([2**20, 2**20, 1], "1099511627776")):
        assert told in refusal(body(tensor(shape=huge)), three)
        text = body(tensor(shape=huge, data=..., parameters={"binary_data_size": 16}))
        assert "'IN'" in refusal(text + bytes(16), three, len(text))


@pytest.mark.parametrize("data", [[1], [1, 2, 3], []])
def test_a_wrong_number_of_values_is_refused_with_both_numbers(data: list[int]) -> None:
    message = refusal(body(tensor(data=data)))
    assert f"{len(data)} values" in message
    assert "room for 2" in message


def test_an_input_with_neither_data_nor_a_binary_size_is_refused() -> None:
    assert "neither data nor binary_data_size" in refusal(body(tensor(data=...)))
