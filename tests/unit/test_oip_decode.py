"""OIP request bodies: each kind of fault is refused by name, each kind of tensor arrives byte for byte."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from contract.errors import InvalidInput, TooLarge
from contract.model_config import DynamicBatching, ModelCard, ModelConfig, TensorSpec
from contract.tensors import NUMPY_TYPES, decode_elements
from gateway.oip.binary import HEADER, header_length
from gateway.oip.decode import decode

IDENT_F32 = ModelConfig(
    "ident_f32",
    "python",
    max_batch_size=8,
    inputs=(TensorSpec("IN", "FP32", (-1,)),),
    outputs=(TensorSpec("OUT", "FP32", (-1,)),),
)
IDENT_I32 = ModelConfig(
    "ident_i32",
    "python",
    max_batch_size=8,
    inputs=(TensorSpec("IN", "INT32", (4,)),),
    outputs=(TensorSpec("OUT", "INT32", (4,)),),
)
IDENT_BYTES = ModelConfig(
    "ident_bytes",
    "python",
    inputs=(TensorSpec("IN", "BYTES", (-1,)),),
    outputs=(TensorSpec("OUT", "BYTES", (-1,)),),
)
TWO = ModelConfig(
    "two",
    "python",
    max_batch_size=4,
    inputs=(
        TensorSpec("A", "FP32", (2,)),
        TensorSpec("B", "FP32", (2,)),
        TensorSpec("C", "INT8", (1,), is_optional=True),
    ),
    outputs=(TensorSpec("SUM", "FP32", (2,)), TensorSpec("DIFF", "FP32", (2,))),
)


def card(config: ModelConfig) -> ModelCard:
    return ModelCard(config, ())


def flat(datatype: str, dims: tuple[int, ...] = (-1,)) -> ModelCard:
    return card(ModelConfig("m", "python", inputs=(TensorSpec("IN", datatype, dims),)))


def tensor(**changes: Any) -> dict[str, Any]:
    fields = {"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def refusal(raw: bytes, config: ModelConfig | ModelCard = IDENT_F32, length: int | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(raw, length, config if isinstance(config, ModelCard) else card(config))
    return caught.value.message


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
    assert "data[0] is nan" in refusal(raw, flat(datatype))


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


# ------------------------------------------------------------------ O-03 the binary extension

RAW = struct.pack("<4i", 1, 2, 3, 4)


def binary_text(size: Any = 16, **changes: Any) -> bytes:
    return body(tensor(datatype="INT32", shape=[1, 4], data=..., parameters={"binary_data_size": size}, **changes))


def test_a_correct_binary_request_is_a_view_of_its_body() -> None:
    text = binary_text()
    decoded = decode(text + RAW, len(text), card(IDENT_I32))
    assert isinstance(decoded.data[0], memoryview)
    assert decoded.data[0] == RAW


@pytest.mark.parametrize("off_by", [-1, 1, -20, 10_000_000_000])
def test_a_header_length_that_lies_is_refused_by_name(off_by: int) -> None:
    text = binary_text()
    message = refusal(text + RAW, IDENT_I32, len(text) + off_by)
    assert HEADER in message


@pytest.mark.parametrize("config", [IDENT_I32, IDENT_F32])
def test_a_header_of_zero_before_json_is_refused_by_name(config: ModelConfig) -> None:
    for padding in range(4):
        assert HEADER in refusal(binary_text() + b" " * padding + RAW, config, 0)


@pytest.mark.parametrize("value", ["-1", "abc", "", " ", "1.0", "+5", "0x10", "5, 5", "1" * 19, "１２"])  # noqa: RUF001
def test_a_header_that_is_no_plain_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidInput, match=HEADER):
        header_length([value])


@pytest.mark.parametrize("values", [["5", "6"], ["5", "5"]])
def test_two_copies_of_the_header_are_refused(values: list[str]) -> None:
    with pytest.raises(InvalidInput, match="given 2 times"):
        header_length(values)


def test_no_header_means_json_only() -> None:
    assert header_length([]) is None
    assert header_length([" 12 "]) == 12


@pytest.mark.parametrize("size", [15, 17, 0, -4, "16", 16.0, True, None, [16], 2**70])
def test_a_wrong_binary_size_is_refused_and_names_the_tensor(size: Any) -> None:
    text = binary_text(size)
    message = refusal(text + RAW, IDENT_I32, len(text))
    assert "'IN'" in message
    assert "binary_data_size" in message


@pytest.mark.parametrize("surplus", [1, 3, 16])
def test_surplus_bytes_behind_the_last_tensor_are_refused(surplus: int) -> None:
    text = binary_text()
    assert f"{surplus} bytes are left over" in refusal(text + RAW + bytes(surplus), IDENT_I32, len(text))


def test_a_body_that_ends_inside_a_tensor_is_refused() -> None:
    text = binary_text()
    assert "15 bytes of the body are left" in refusal(text + RAW[:-1], IDENT_I32, len(text))


def test_a_binary_size_without_the_header_is_refused() -> None:
    assert HEADER in refusal(binary_text(), IDENT_I32)


def test_a_binary_size_beside_data_is_refused() -> None:
    text = body(tensor(parameters={"binary_data_size": 8}))
    assert "only one of them" in refusal(text + bytes(8), IDENT_F32, len(text))


def test_binary_and_json_inputs_mix_in_one_request() -> None:
    text = body(
        tensor(name="A", data=..., parameters={"binary_data_size": 8}),
        tensor(name="B", data=[3, 4]),
        tensor(name="C", shape=[1, 1], datatype="INT8", data=..., parameters={"binary_data_size": 1}),
    )
    decoded = decode(text + struct.pack("<2f", 1, 2) + b"\x05", len(text), card(TWO))
    assert [bytes(d) for d in decoded.data] == [struct.pack("<2f", 1, 2), struct.pack("<2f", 3, 4), b"\x05"]


def test_a_binary_boolean_is_zero_or_one() -> None:
    text = body(tensor(datatype="BOOL", shape=[3], data=..., parameters={"binary_data_size": 3}))
    assert bytes(decode(text + b"\0\1\0", len(text), flat("BOOL")).data[0]) == b"\0\1\0"
    assert "BOOL" in refusal(text + b"\0\2\0", flat("BOOL"), len(text))


# ------------------------------------------------------------------ raw binary requests


def test_a_raw_request_is_the_only_input_and_wants_binary_back() -> None:
    decoded = decode(RAW, 0, card(IDENT_I32))
    assert decoded.heads[0].shape == (1, 4)
    assert decoded.data[0] == RAW
    assert decoded.form.is_binary


def test_a_raw_request_fills_the_one_open_dimension() -> None:
    assert decode(bytes(24), 0, card(IDENT_F32)).heads[0].shape == (1, 6)


@pytest.mark.parametrize(("max_batch_size", "shape"), [(0, (1,)), (8, (1, 1))])
def test_a_raw_bytes_request_is_one_element(max_batch_size: int, shape: tuple[int, ...]) -> None:
    spec = TensorSpec("IN", "BYTES", (1,))
    config = ModelConfig("m", "python", max_batch_size=max_batch_size, inputs=(spec,))
    decoded = decode(b"\xffany", 0, card(config))
    assert decoded.heads[0].shape == shape
    assert decode_elements("IN", decoded.data[0], 1) == [b"\xffany"]
    assert decoded.sizes == (8,)


def test_a_raw_request_is_refused_where_its_shape_is_not_certain() -> None:
    assert "17 bytes" in refusal(RAW + b"x", IDENT_I32, 0)
    assert "32 bytes" in refusal(RAW + RAW, IDENT_I32, 0)
    assert "no multiple of the 4" in refusal(b"12345", IDENT_F32, 0)
    assert "2 open dimensions" in refusal(RAW, flat("FP32", (-1, -1)), 0)
    assert "'two' has 3" in refusal(RAW, TWO, 0)
    assert "one BYTES element" in refusal(b"x", flat("BYTES", (2,)), 0)


# ------------------------------------------------------------------ parameters and outputs


def test_parameters_are_sorted_into_ours_and_the_models() -> None:
    settings = {"priority": 2, "timeout": 5000, "binary_data_output": True, "temperature": 0.5, "mode": "fast", "n": 3}
    decoded = decode(body(tensor(), id="a-1", parameters=settings), None, card(IDENT_F32))
    assert (decoded.priority, decoded.queue_timeout_us, decoded.caller_id) == (2, 5000, "a-1")
    assert decoded.form.is_binary
    assert decoded.parameters == {"temperature": 0.5, "mode": "fast", "n": 3}


@pytest.mark.parametrize(
    "name", ["sequence_id", "sequence_start", "sequence_end", "headers", "triton_enable_empty_final_response"]
)
def test_a_reserved_parameter_is_refused_by_name(name: str) -> None:
    assert name in refusal(body(tensor(), parameters={name: 0}))


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", [-1, 1.0, "1", True, None, 2**64])
def test_a_parameter_that_must_be_a_number_is_one(name: str, value: Any) -> None:
    assert name in refusal(body(tensor(), parameters={name: value}))


@pytest.mark.parametrize("value", [None, [], {}, 2**63, -(2**63) - 1])
def test_a_parameter_no_message_can_carry_is_refused_by_name(value: Any) -> None:
    assert "'mine'" in refusal(body(tensor(), parameters={"mine": value}))


def test_a_priority_beyond_the_models_levels_is_refused_with_both() -> None:
    levels = ModelConfig(
        "lv", "python", inputs=(TensorSpec("IN", "FP32", (2,)),), dynamic_batching=DynamicBatching(priority_levels=3)
    )
    request = tensor(shape=[2])
    assert decode(body(request, parameters={"priority": 3}), None, card(levels)).priority == 3
    message = refusal(body(request, parameters={"priority": 4}), levels)
    assert "is 4" in message
    assert "1 to 3" in message


def test_wanted_outputs_keep_their_order_and_each_its_form() -> None:
    outputs = [{"name": "DIFF", "parameters": {"binary_data": False}}, {"name": "SUM"}]
    request = body(tensor(name="A"), tensor(name="B"), outputs=outputs, parameters={"binary_data_output": True})
    decoded = decode(request, None, card(TWO))
    assert decoded.outputs == ("DIFF", "SUM")
    assert decoded.form.by_name == {"DIFF": False, "SUM": True}


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ([{"name": "X"}], "'X'"),
        ([{"name": "SUM"}, {"name": "SUM"}], "twice"),
        ([{"name": "SUM", "parameters": {"binary_data": 1}}], "binary_data"),
        ([{"name": "SUM", "parameters": {"classification": 2}}], "classification"),
        ([{"name": "SUM", "parameters": {"shared_memory_region": "r"}}], "shared_memory_region"),
        ([{}], "outputs[0]: name"),
        ([3], "outputs[0]"),
        ({}, "'outputs'"),
    ],
)
def test_a_wanted_output_that_cannot_be_is_refused_by_name(outputs: Any, told: str) -> None:
    assert told in refusal(body(tensor(name="A"), tensor(name="B"), outputs=outputs), TWO)


def test_shared_memory_is_refused_by_name() -> None:
    assert "shared_memory_region" in refusal(body(tensor(parameters={"shared_memory_region": "r"})))


@pytest.mark.parametrize("field", ["id", "outputs", "parameters"])
def test_null_in_an_optional_field_reads_like_its_absence(field: str) -> None:
    assert decode(body(tensor(), **{field: None}), None, card(IDENT_F32)).caller_id == ""


@pytest.mark.parametrize("value", [5, ["x"], {}])
def test_an_id_that_is_no_string_is_refused(value: Any) -> None:
    assert "'id'" in refusal(body(tensor(), id=value))


def test_json_over_its_bound_is_too_large_and_binary_tensors_do_not_count() -> None:
    text = binary_text()
    assert decode(text + RAW, len(text), card(IDENT_I32), max_json_bytes=len(text)).rows == 1
    with pytest.raises(TooLarge, match="binary tensor data extension"):
        decode(text + RAW, len(text), card(IDENT_I32), max_json_bytes=len(text) - 1)


def test_a_look_that_was_accepted_once_is_still_held_against_its_data() -> None:
    for _ in range(2):
        assert decode(body(tensor()), None, card(IDENT_F32)).rows == 1
        assert "1 values" in refusal(body(tensor(data=[1])))


def test_looks_are_forgotten_before_they_fill_the_memory() -> None:
    one = card(IDENT_F32)
    for length in range(1, 700):
        decode(body(tensor(shape=[1, length], data=[0] * length)), None, one)
    from gateway.oip.plan import MAX_LOOKS, plan_of

    assert len(plan_of(one.config)._accepted) <= MAX_LOOKS
