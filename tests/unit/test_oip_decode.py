"""Requests that cannot be: refused by the name of input and field, before anything is allocated."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from gateway.oip.binary import HEADER
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


@pytest.mark.parametrize("raw", [b"{", b"\xff\xfe", b'{"inputs":[}', b"NaNa", b'{"inputs": [Infinity}', b"\x00"])
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


# ------------------------------------------------------------------ what one body may cost

ONE = b'{"name":"IN","datatype":"INT32","shape":[1,4],"data":[1,2,3,4]}'


def listed(before: bytes, item: bytes, after: bytes, num_bytes: int) -> bytes:
    return before + b",".join([item] * (num_bytes // (len(item) + 1))) + after


@pytest.mark.parametrize("num_bytes", [30_000, 2_000_000])
@pytest.mark.parametrize(
    ("field", "before", "item", "after"),
    [
        ("'inputs'", b'{"inputs":[', ONE, b"]}"),
        ("'outputs'", b'{"inputs":[' + ONE + b'],"outputs":[', b'{"name":"OUT"}', b"]}"),
    ],
)
def test_more_tensors_than_any_model_has_are_refused_by_their_number(
    field: str, before: bytes, item: bytes, after: bytes, num_bytes: int
) -> None:
    message = refusal(listed(before, item, after, num_bytes), IDENT_I32)
    assert field in message
    assert "at most 256" in message


@pytest.mark.parametrize("owner", ["request", "input", "output"])
def test_more_parameters_than_anybody_needs_are_refused_by_their_number(owner: str) -> None:
    many = {f"p{n}": 1 for n in range(257)}
    good = tensor(shape=[1, 4], datatype="INT32", data=[1, 2, 3, 4])
    raw = {
        "request": body(good, parameters=many),
        "input": body({**good, "parameters": many}),
        "output": body(good, outputs=[{"name": "OUT", "parameters": many}]),
    }[owner]
    assert "parameters has 257 fields, at most 256" in refusal(raw, IDENT_I32)


@pytest.mark.parametrize(
    "raw",
    [
        listed(b'{"inputs":[', ONE, b",{}]}", 2_000_000),
        listed(b'{"x":[', b"[]", b'],"inputs":1}', 1_400_000),
        listed(b'{"inputs":[', ONE, b"]", 2_000_000),
        listed(b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[', b"1", b',"a"]}]}', 2_000_000),
    ],
    ids=["input", "inputs", "cut", "shape"],
)
def test_large_json_is_refused_without_being_decoded_in_python(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("json.loads decoded a large body")

    monkeypatch.setattr("gateway.oip.decode.json.loads", never)
    assert len(refusal(raw, IDENT_I32)) < 400


def test_large_json_of_booleans_is_a_request_like_any_other() -> None:
    raw = listed(b'{"inputs":[{"name":"IN","datatype":"BOOL","shape":[240000],"data":[', b"true", b"]}]}", 1_200_000)
    assert bytes(decode(raw, None, flat("BOOL")).data[0]) == b"\1" * 240_000


def test_large_json_with_nan_is_sent_to_the_binary_form() -> None:
    raw = listed(b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[3],"data":[', b"1.5", b",NaN]}]}", 1_200_000)
    assert "binary tensor data extension" in refusal(raw, flat("FP32"))


def test_the_collector_is_as_it_was_after_a_large_request() -> None:
    refusal(listed(b'{"inputs":[', ONE, b"]}", 2_000_000), IDENT_I32)
    assert gc.isenabled()


@pytest.mark.parametrize("bad", [300, 1.5, True, "x", None])
@pytest.mark.parametrize("at", [0, 1023, 1024, 5000])
def test_a_value_that_does_not_fit_is_named_wherever_it_stands(bad: Any, at: int) -> None:
    data: list[Any] = [1] * 5001
    data[at] = bad
    assert f"data[{at}] is" in refusal(body(tensor(datatype="INT8", shape=[5001], data=data)), flat("INT8"))


# ------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the body is empty"),
        (b'{"inputs":NaN}', "field 'inputs' is NaN"),
        (b'{"inputs":-Infinity}', "field 'inputs' is -Infinity"),
        (b'{"inputs":' + b"1" * 10_000 + b"}", "has 10000 digits"),
        (ONE.join((b'{"inputs":[', b"]}")) + b"\0\0\0\1", HEADER),
        (ONE.join((b'{"inputs":[', b"]}")) + b"\xff\xfe", HEADER),
        (b"\x80abc", HEADER),
        (b'{"id":"\\ud800","inputs":[' + ONE + b"]}", "valid Unicode"),
    ],
)
def test_a_refusal_says_what_is_wrong_in_the_callers_own_terms(raw: bytes, says: str) -> None:
    message = refusal(raw, IDENT_I32)
    assert says in message
    assert "sys." not in message
    assert message.count("malformed") < 2


def test_half_a_surrogate_pair_is_no_text_and_named_as_such() -> None:
    raw = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}'
    assert "data[0] is '\\ud800', BYTES wants a string of valid Unicode" in refusal(raw, flat("BYTES"))


@pytest.mark.parametrize("shape", [[-1, 4], [1, -4]])
def test_a_negative_size_is_told_apart_from_the_models_open_ones(shape: list[int]) -> None:
    message = refusal(body(tensor(datatype="INT32", shape=shape, data=[1, 2, 3, 4])), IDENT_I32)
    assert f"{min(shape)} is not a size a request may give" in message
