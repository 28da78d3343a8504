"""`triton_python_backend_utils` as models use it, and the frames that carry their tensors."""

from __future__ import annotations

import json
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contract.errors import ExecutionTimeout, ModelFailed
from contract.tensors import DATATYPES, NUMPY_TYPES, Array
from workers.backends import python_frames as frames
from workers.backends import triton_python_backend_utils as pb_utils
from workers.backends.base import InstanceRequest


def tensor_names(fields: dict) -> list[str]:
    return [tensor["name"] for tensor in fields]


def test_every_config_datatype_has_a_numpy_type_and_a_number() -> None:
    for name in ("BOOL", "UINT8", "INT64", "FP16", "FP32", "FP64"):
        dtype = pb_utils.triton_string_to_numpy(f"TYPE_{name}")
        assert np.dtype(dtype) == NUMPY_TYPES[name]
        assert pb_utils.triton_to_numpy_type(pb_utils.numpy_to_triton_type(dtype)) == dtype
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_INT32"] is np.int32
    assert pb_utils.numpy_to_triton_type(np.object_) == 13
    with pytest.raises(pb_utils.TritonModelException, match="'TYPE_FP8' is not known"):
        pb_utils.triton_string_to_numpy("TYPE_FP8")
    with pytest.raises(pb_utils.TritonModelException, match="complex64"):
        pb_utils.numpy_to_triton_type(np.complex64)


def test_a_tensor_shares_the_memory_it_was_made_from() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = pb_utils.Tensor("X", array)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("X", [2, 3], 11, True)
    assert tensor.as_numpy() is array
    for again in (pb_utils.Tensor.from_dlpack("Y", tensor), pb_utils.Tensor.from_dlpack("Y", tensor.to_dlpack())):
        assert np.shares_memory(again.as_numpy(), array)
    with pytest.raises(pb_utils.TritonModelException, match="must be made from a numpy array, not list"):
        pb_utils.Tensor("X", [1, 2])  # type: ignore[arg-type]


def test_memory_of_another_device_is_refused_by_its_number() -> None:
    class OnGpu:
        def __dlpack__(self, **how: object) -> object:
            raise AssertionError

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(pb_utils.TritonModelException, match=r"'X' is on DLPack device \(2, 0\); move it to the CPU"):
        pb_utils.Tensor.from_dlpack("X", OnGpu())


def test_bf16_is_seen_as_ml_dtypes_and_travels_as_raw_bits() -> None:
    import ml_dtypes

    raw = np.array([0x3F80, 0xC000], np.uint16)
    tensor = pb_utils.Tensor("X", raw, datatype="BF16")
    assert tensor.as_numpy().astype(np.float32).tolist() == [1.0, -2.0]
    made = pb_utils.Tensor("X", np.array([1.0, -2.0], ml_dtypes.bfloat16))
    assert made.triton_dtype() == tensor.triton_dtype() == 14
    datatype, array = made.to_wire()
    assert (datatype, array.tolist()) == ("BF16", raw.tolist())


def test_responses_and_errors_say_what_they_are() -> None:
    response = pb_utils.InferenceResponse(output_tensors=[], error="bad")
    assert response.has_error()
    assert (response.error().message(), response.error().code()) == ("bad", pb_utils.TritonError.INTERNAL)
    assert not pb_utils.InferenceResponse().has_error()
    with pytest.raises(pb_utils.TritonModelException, match=r"must be pb_utils\.Tensor, not ndarray"):
        pb_utils.InferenceResponse([np.zeros(1)])
    with pytest.raises(pb_utils.TritonModelException, match="response parameters are not supported"):
        pb_utils.InferenceResponse([], parameters={"a": 1})


def test_what_is_not_served_says_so_by_name() -> None:
    request = pb_utils.InferenceRequest(model_name="other", requested_output_names=["Y"], inputs=[])
    with pytest.raises(pb_utils.TritonModelException, match="can't call another model \\('other'\\)"):
        request.exec()
    with pytest.raises(pb_utils.TritonModelException, match="decoupled"):
        request.get_response_sender()
    with pytest.raises(AttributeError, match="MetricFamily: models can't register metrics"):
        pb_utils.MetricFamily  # noqa: B018
    assert not hasattr(pb_utils, "shared_memory")


def test_byte_tensors_are_serialized_and_read_back() -> None:
    elements = np.array([[b"a", "ä".encode()], [b"", b"\0\xff"]], object)
    (encoded,) = pb_utils.serialize_byte_tensor(elements)
    assert encoded[:5] == b"\x01\0\0\0a"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == elements.reshape(-1).tolist()
    assert pb_utils.deserialize_bytes_tensor(b"").tolist() == []


def test_auto_completion_adds_and_never_contradicts() -> None:
    given = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}, {"name": "Z"}], "max_batch_size": 2}
    config = pb_utils.ModelConfig(json.dumps(given))
    config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
    config.add_input({"name": "Z", "data_type": "TYPE_INT8", "dims": [1]})
    config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": False})
    found = config.as_dict()
    assert tensor_names(found["input"]) == ["X", "Z"]
    assert found["input"][0]["optional"] is True
    assert found["input"][1]["data_type"] == "TYPE_INT8"
    assert tensor_names(found["output"]) == ["Y"]
    assert (found["max_batch_size"], found["dynamic_batching"]) == (8, {})
    assert "model_transaction_policy" not in found


@pytest.mark.parametrize(
    ("call", "argument", "message"),
    [
        ("set_max_batch_size", 1, "max_batch_size is 2 in the config, auto_complete_config allows 1"),
        ("add_input", {"name": "X", "data_type": "TYPE_INT8", "dims": [4]}, "data_type is TYPE_FP32 in the config"),
        ("add_input", {"name": "X", "data_type": "TYPE_FP32", "dims": [5]}, r"dims is \[4\] in the config, \[5\] in"),
        ("add_input", {"name": "X", "dims": [5]}, "input 'X' lacks 'data_type'"),
        ("add_output", {"name": "Y", "data_type": "T", "dims": [1], "size": 1}, "output has unknown field 'size'"),
        ("set_model_transaction_policy", {"coupled": True}, "unknown field 'coupled'"),
    ],
)
def test_a_contradiction_is_a_value_error_with_both_values(call: str, argument: object, message: str) -> None:
    given = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}], "max_batch_size": 2}
    config = pb_utils.ModelConfig(json.dumps(given))
    with pytest.raises(ValueError, match=message):
        getattr(config, call)(argument)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, Array]:
    datatype = draw(st.sampled_from(DATATYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if datatype == "BYTES":
        flat = np.empty(int(np.prod(shape)), object)
        flat[:] = draw(st.lists(st.binary(max_size=20), min_size=flat.size, max_size=flat.size))
        return datatype, flat.reshape(shape)
    raw = draw(st.binary(min_size=(n := int(np.prod(shape)) * NUMPY_TYPES[datatype].itemsize), max_size=n))
    return datatype, np.frombuffer(raw, NUMPY_TYPES[datatype]).reshape(shape)


@given(st.lists(st.lists(arrays(), max_size=3), max_size=4))
@settings(max_examples=100, deadline=None)
def test_what_is_sent_is_received(given: list[list[tuple[str, Array]]]) -> None:
    for named in given:
        requests = [
            InstanceRequest({f"T{n}": array for n, (_, array) in enumerate(named)}, ("Y",), "id", 3, {"a": 1}, 5)
        ]
        datatypes = {f"T{n}": datatype for n, (datatype, _) in enumerate(named)}
        run, body = frames.pack_requests(requests * 2, datatypes)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            frames.send(ours, run, body, time.monotonic() + 10)
            message, received = frames.receive(theirs, time.monotonic() + 10)
        assert isinstance(message, frames.Run)
        for request in frames.unpack_requests(message, received):
            assert (request.outputs, request.request_id, request.correlation_id) == (("Y",), "id", 3)
            assert (request.parameters, request.timeout_us) == ({"a": 1}, 5)
            for n, (_, array) in enumerate(named):
                found = request.inputs[f"T{n}"]
                assert (found.dtype, found.shape) == (array.dtype, array.shape)
                assert found.tobytes() == array.tobytes() if array.dtype != object else found.tolist() == array.tolist()


def test_results_and_errors_keep_their_order_and_class() -> None:
    results = [{"Y": np.arange(3, dtype=np.int8)}, ExecutionTimeout("late"), {}, ModelFailed("no")]
    done, body = frames.pack_results(results, {"Y": "INT8"})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, done, body)
        message, received = frames.receive(theirs)
    assert isinstance(message, frames.Done)
    found = frames.unpack_results(message, received)
    assert [type(result) for result in found] == [dict, ExecutionTimeout, dict, ModelFailed]
    assert found[0]["Y"].tolist() == [0, 1, 2]  # type: ignore[index]


def test_a_tensor_starts_at_an_aligned_address() -> None:
    inputs = {"A": np.zeros(3, np.int8), "B": np.zeros(2, np.float64), "C": np.zeros(1, np.float64)}
    run, _ = frames.pack_requests([InstanceRequest(inputs, ())], {})
    assert [part.offset % 16 for part in run.requests[0].tensors] == [0, 0, 0]


def test_a_reader_that_does_not_read_is_given_up_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    big = [memoryview(bytes(64 * 1024 * 1024))]
    with ours, theirs, pytest.raises(TimeoutError):
        frames.send(ours, frames.Stop(), big, time.monotonic() + 0.1)


def test_a_writer_that_stops_in_the_middle_is_given_up_at_the_deadline_or_when_it_closes() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b"\x05\0\0")
            with pytest.raises(TimeoutError):
                frames.receive(theirs, time.monotonic() + 0.1)
        with pytest.raises(frames.Closed):
            frames.receive(theirs, time.monotonic() + 10)


@pytest.mark.parametrize("head", [b"\xc1", b"\x80", b"\x81\xa4type\xa1X"])
def test_bytes_that_are_no_message_close_the_conversation(head: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(len(head).to_bytes(4, "little") + bytes(8) + head)
        with pytest.raises(frames.Closed):
            frames.receive(theirs, time.monotonic() + 10)


def test_a_large_body_goes_through_while_the_other_side_reads_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    array = np.arange(3_000_000, dtype=np.int64)
    found: list[Array] = []

    def read() -> None:
        message, body = frames.receive(theirs, time.monotonic() + 30)
        assert isinstance(message, frames.Run)
        found.extend(frames.unpack_requests(message, body)[0].inputs.values())

    with ours, theirs:
        reader = threading.Thread(target=read)
        reader.start()
        frames.send(ours, *frames.pack_requests([InstanceRequest({"X": array}, ())], {}), time.monotonic() + 30)
        reader.join(30)
    np.testing.assert_array_equal(found[0], array)
