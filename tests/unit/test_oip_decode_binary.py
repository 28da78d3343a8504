"""The binary tensor extension, raw requests, parameters and wanted outputs."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from contract.errors import InvalidInput, TooLarge
from contract.model_config import DynamicBatching, ModelConfig, TensorSpec
from contract.tensors import decode_elements
from gateway.oip.binary import HEADER, header_length
from gateway.oip.decode import decode
from tests.support.oip_kit import IDENT_BYTES, IDENT_F32, IDENT_I32, TWO, body, card, flat, refusal, tensor

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


def test_classes_are_wanted_beside_the_names_of_outputs() -> None:
    outputs = [{"name": "DIFF"}, {"name": "SUM", "parameters": {"classification": 3, "binary_data": True}}]
    decoded = decode(body(tensor(name="A"), tensor(name="B"), outputs=outputs), None, card(TWO))
    assert (decoded.outputs, decoded.classifications) == (("DIFF", "SUM"), (0, 3))
    assert decoded.form.by_name == {"DIFF": False, "SUM": True}
    outputs = [{"name": "SUM", "parameters": {"classification": 0}}]
    decoded = decode(body(tensor(name="A"), tensor(name="B"), outputs=outputs), None, card(TWO))
    assert (decoded.outputs, decoded.classifications) == (("SUM",), ())


def test_an_output_that_is_no_number_has_no_classes() -> None:
    outputs = [{"name": "OUT", "parameters": {"classification": 1}}]
    error = refusal(body(tensor(datatype="BYTES", shape=[1], data=["a"]), outputs=outputs), IDENT_BYTES)
    assert "'OUT'" in error
    assert "BYTES" in error


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        ([{"name": "X"}], "'X'"),
        ([{"name": "SUM"}, {"name": "SUM"}], "twice"),
        ([{"name": "SUM", "parameters": {"binary_data": 1}}], "binary_data"),
        *(
            ([{"name": "SUM", "parameters": {"classification": k}}], f"'classification' is {told}")
            for k, told in ((-1, "-1"), (2.0, "2.0"), ("2", "'2'"), (True, "true"), (None, "null"), (2**31, str(2**31)))
        ),
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
