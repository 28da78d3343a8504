"""Values and text as JSON carries them: the same bytes, or a refusal; never wrapped, never mangled."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from contract.tensors import NUMPY_TYPES, decode_elements
from gateway.oip.decode import decode
from tests.support.oip_kit import IDENT_BYTES, IDENT_F32, body, card, flat, refusal, tensor

# ------------------------------------------------------------------ values

INTS = {name: np.iinfo(dtype) for name, dtype in NUMPY_TYPES.items() if dtype.kind in "iu" and name != "BF16"}


@pytest.mark.parametrize("datatype", INTS)
def test_integers_arrive_at_both_ends_of_their_range(datatype: str) -> None:
    values = [int(INTS[datatype].min), 0, int(INTS[datatype].max)]
    decoded = decode(body(tensor(datatype=datatype, shape=[3], data=values)), None, flat(datatype))
    assert np.frombuffer(decoded.data[0], NUMPY_TYPES[datatype]).tolist() == values


@pytest.mark.parametrize("datatype", INTS)
@pytest.mark.parametrize("step", [-1, 1])
def test_an_integer_out_of_range_is_refused_and_never_wraps(datatype: str, step: int) -> None:
    value = int(INTS[datatype].min) - 1 if step < 0 else int(INTS[datatype].max) + 1
    message = refusal(body(tensor(datatype=datatype, shape=[2], data=[0, value])), flat(datatype))
    assert f"data[1] is {value}" in message
    assert f"from {INTS[datatype].min} to {INTS[datatype].max}" in message


@pytest.mark.parametrize("datatype", INTS)
@pytest.mark.parametrize("value", [True, 1.0, 1.5, "1", None, {}, 10**400])
def test_only_a_whole_number_is_an_integer(datatype: str, value: Any) -> None:
    assert "data[1]" in refusal(body(tensor(datatype=datatype, shape=[2], data=[0, value])), flat(datatype))


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("value", [True, "1", None, {}, 10**400])
def test_only_a_number_is_a_float(datatype: str, value: Any) -> None:
    assert "data[1]" in refusal(body(tensor(datatype=datatype, shape=[2], data=[0, value])), flat(datatype))


@pytest.mark.parametrize(("datatype", "value"), [("FP16", 65520), ("BF16", 3.4e38), ("FP32", 3.5e38), ("FP32", -1e39)])
def test_a_float_out_of_range_is_refused_and_never_becomes_infinite(datatype: str, value: float) -> None:
    assert "data[0]" in refusal(body(tensor(datatype=datatype, shape=[1], data=[value])), flat(datatype))


@pytest.mark.parametrize("text", [b"1e400", b"-1e999", b"NaN, 1e400"])
def test_a_number_beyond_fp64_is_refused(text: bytes) -> None:
    raw = b'{"inputs":[{"name":"IN","datatype":"FP64","shape":[2],"data":[' + text + b"]}]}"
    assert "out of range" in refusal(raw, flat("FP64"))


@pytest.mark.parametrize("value", [0, 1, "true", None, 1.0])
def test_only_true_and_false_are_booleans(value: Any) -> None:
    assert "true or false" in refusal(body(tensor(datatype="BOOL", shape=[2], data=[True, value])), flat("BOOL"))


def test_booleans_arrive_as_single_bytes() -> None:
    decoded = decode(body(tensor(datatype="BOOL", shape=[3], data=[True, False, True])), None, flat("BOOL"))
    assert decoded.data == [b"\x01\x00\x01"]


@pytest.mark.parametrize(("datatype", "code"), [("FP16", "e"), ("FP32", "f"), ("FP64", "d"), ("BF16", "f")])
def test_bare_nan_and_infinity_are_read_as_floats(datatype: str, code: str) -> None:
    raw = (
        b'{"inputs":[{"name":"IN","datatype":"%b","shape":[4],"data":[1.0, NaN, Infinity, -Infinity]}],'
        b'"parameters":{"binary_data_output":true}}' % datatype.encode()
    )
    decoded = decode(raw, None, flat(datatype))
    expected = struct.pack(f"<4{code}", 1.0, float("nan"), float("inf"), float("-inf"))
    if datatype == "BF16":
        expected = b"".join(expected[at + 2 : at + 4] for at in range(0, 16, 4))
    assert decoded.data == [expected]


@pytest.mark.parametrize("datatype", ["INT32", "BOOL", "BYTES"])
def test_nan_is_refused_where_no_float_belongs(datatype: str) -> None:
    raw = b'{"inputs":[{"name":"IN","datatype":"%b","shape":[1],"data":[NaN]}]}' % datatype.encode()
    assert "data[0] is NaN" in refusal(raw, flat(datatype))


def test_bf16_rounds_to_nearest_with_ties_to_even() -> None:
    values = [1.0, 1.00390625, 1.01171875, 3.3895313892515355e38, -0.0]
    decoded = decode(body(tensor(datatype="BF16", shape=[5], data=values)), None, flat("BF16"))
    assert np.frombuffer(decoded.data[0], "<u2").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x7F7F, 0x8000]


@pytest.mark.parametrize("data", [[[1, 2, 3], [4, 5, 6]], [1, 2, 3, 4, 5, 6]])
def test_nested_and_flat_data_are_the_same_tensor(data: list[Any]) -> None:
    decoded = decode(body(tensor(shape=[2, 3], data=data)), None, card(IDENT_F32))
    assert decoded.data == [struct.pack("<6f", 1, 2, 3, 4, 5, 6)]
    assert decoded.rows == 2


@pytest.mark.parametrize(
    "data",
    [[[1, 2], [3, 4], [5, 6]], [[1, 2, 3], [4, 5]], [[1, 2, 3], 4], [[[1, 2, 3]], [[4, 5, 6]]], [[], []], [[1]] * 6],
)
def test_nesting_unlike_the_shape_is_refused(data: list[Any]) -> None:
    assert "'IN'" in refusal(body(tensor(shape=[2, 3], data=data)))


# ------------------------------------------------------------------ O-04 BYTES

TEXTS = ["plain", "naïve", "日本語", "🙂", "a\u0000b", "’"]  # noqa: RUF001 - the quote of the report


def test_bytes_lengths_are_counted_in_bytes() -> None:
    decoded = decode(body(tensor(datatype="BYTES", shape=[6], data=TEXTS)), None, card(IDENT_BYTES))
    assert decode_elements("IN", decoded.data[0], 6) == [text.encode() for text in TEXTS]
    assert decoded.sizes == (len(decoded.data[0]),) == (decoded.payload_bytes,)


def test_bytes_arrive_the_same_whether_json_escapes_them_or_not() -> None:
    request = {"inputs": [tensor(datatype="BYTES", shape=[6], data=TEXTS)]}
    plain = decode(json.dumps(request, ensure_ascii=False).encode(), None, card(IDENT_BYTES))
    assert plain.data == decode(json.dumps(request).encode(), None, card(IDENT_BYTES)).data


@pytest.mark.parametrize("literal", [b"", b",NaN"])
def test_a_lone_surrogate_is_refused(literal: bytes) -> None:
    raw = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\\ud800"' + literal + b"]}]}"
    assert refusal(raw, IDENT_BYTES)


def test_a_lone_surrogate_in_the_id_is_refused_even_beside_nan() -> None:
    raw = b'{"id":"\\ud800","inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[NaN]}]}'
    assert "malformed" in refusal(raw)


def elements(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(p)) + p for p in parts)


@pytest.mark.parametrize(
    "raw",
    [
        elements(b"one"),
        elements(b"one", b"two", b"three"),
        elements(b"one", b"two")[:-1],
        elements(b"one") + b"\x02\x00\x00",
        struct.pack("<I", 0xFFFFFFFF) * 2,
        elements(b"one", b"two") + b"\x00",
    ],
)
def test_binary_bytes_elements_must_add_up(raw: bytes) -> None:
    text = body(tensor(datatype="BYTES", shape=[2], data=..., parameters={"binary_data_size": len(raw)}))
    assert "'IN'" in refusal(text + raw, IDENT_BYTES, len(text))


def test_binary_bytes_pass_unchanged_whatever_they_hold() -> None:
    raw = elements(b"\xff\xfe", b"")
    text = body(tensor(datatype="BYTES", shape=[2], data=..., parameters={"binary_data_size": len(raw)}))
    decoded = decode(text + raw, len(text), card(IDENT_BYTES))
    assert bytes(decoded.data[0]) == raw
    assert decoded.sizes == (len(raw),)
