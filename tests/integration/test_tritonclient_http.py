"""The client people already have, synchronous and asyncio, against the HTTP door."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from gateway.http.server import HttpDoor
from tests.support.http_kit import HOST, EchoCore

TEXTS = ["plain", "naïve", "日本語", "🙂", "a\u0000b", "’"]  # noqa: RUF001 - the quote of the report
ARRAYS = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.1, -65504, math.inf, math.nan], np.float16),
    "FP32": np.array([0.1, 3.4e38, -math.inf, math.nan], np.float32),
    "FP64": np.array([0.1, 1e308, math.inf, math.nan]),
    "BYTES": np.array([t.encode() for t in TEXTS], object),
}


@pytest.fixture
async def aio(door: HttpDoor) -> AsyncIterator[triton_aio.InferenceServerClient]:
    async with triton_aio.InferenceServerClient(f"{HOST}:{door.port}") as client:
        yield client


async def in_thread(door: HttpDoor, use: Callable[[triton.InferenceServerClient], Any]) -> Any:
    """Run the synchronous client beside our loop."""

    def run() -> Any:
        with triton.InferenceServerClient(f"{HOST}:{door.port}", network_timeout=20) as client:
            return use(client)

    return await asyncio.to_thread(run)


def inputs(datatype: str, array: np.ndarray[Any, Any], *, is_binary: bool) -> list[triton.InferInput]:
    tensor = triton.InferInput("IN", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return [tensor]


def outputs(*, is_binary: bool) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput("OUT", binary_data=is_binary)]


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("is_binary_in", [True, False])
@pytest.mark.parametrize("is_binary_out", [True, False])
async def test_every_datatype_comes_back_in_every_form(
    aio: triton_aio.InferenceServerClient, datatype: str, is_binary_in: bool, is_binary_out: bool
) -> None:
    array = ARRAYS[datatype]
    if datatype == "FP16" and not is_binary_in:
        pytest.skip("tritonclient sends FP16 in binary only")
    result = await aio.infer(
        f"flat_{datatype.lower()}",
        inputs(datatype, array, is_binary=is_binary_in),
        outputs=outputs(is_binary=is_binary_out),
    )
    found = result.as_numpy("OUT")
    if datatype == "BYTES":
        assert [e if isinstance(e, bytes) else e.encode() for e in found.tolist()] == array.tolist()
    else:
        np.testing.assert_array_equal(found, array)


async def test_the_synchronous_client_infers_all_the_same(door: HttpDoor) -> None:
    def use(client: triton.InferenceServerClient) -> Any:
        results = {}
        for datatype, array in ARRAYS.items():
            result = client.infer(f"flat_{datatype.lower()}", inputs(datatype, array, is_binary=True), request_id="r-9")
            assert result.get_response()["id"] == "r-9"
            results[datatype] = result.as_numpy("OUT")
        return results

    found = await in_thread(door, use)
    for datatype, array in ARRAYS.items():
        np.testing.assert_array_equal(found[datatype], array)


async def test_bf16_passes_bit_by_bit(aio: triton_aio.InferenceServerClient) -> None:
    values = np.array([0.5, -3.0, 1e38], ml_dtypes.bfloat16)
    result = await aio.infer(
        "flat_bf16",
        inputs("BF16", values, is_binary=True),
        outputs=outputs(is_binary=False),
    )
    assert np.array(result.get_response()["outputs"][0]["data"], ml_dtypes.bfloat16).tobytes() == values.tobytes()


async def test_many_requests_at_once_get_their_own_answers(aio: triton_aio.InferenceServerClient) -> None:
    async def ask(at: int) -> bool:
        array = np.full((1, at % 7 + 1), at, np.float32)
        result = await aio.infer("ident_f32", inputs("FP32", array, is_binary=at % 2 == 0), request_id=str(at))
        return result.get_response()["id"] == str(at) and np.array_equal(result.as_numpy("OUT"), array)

    assert all(await asyncio.gather(*(ask(at) for at in range(300))))


async def test_options_reach_the_core(core: EchoCore, aio: triton_aio.InferenceServerClient) -> None:
    await aio.infer(
        "ident_f32",
        inputs("FP32", np.ones((2, 3), np.float32), is_binary=True),
        priority=2,
        timeout=7_000,
        parameters={"temperature": 0.5},
        headers={"Headrace-Timeout-Ms": "900"},
    )
    request = core.requests[0]
    assert (request.rows, request.priority, request.queue_timeout_us) == (2, 2, 7_000)
    assert request.parameters == {"temperature": 0.5}


async def test_health_and_metadata_read_as_triton_clients_expect(
    core: EchoCore, aio: triton_aio.InferenceServerClient
) -> None:
    assert await aio.is_server_live()
    assert await aio.is_server_ready()
    assert await aio.is_model_ready("ident_i32")
    assert await aio.is_model_ready("ident_i32", "1")
    assert not await aio.is_model_ready("ident_i32", "2")
    assert not await aio.is_model_ready("loading")
    assert not await aio.is_model_ready("nobody")
    assert (await aio.get_server_metadata())["name"] == "headrace"
    assert await aio.get_model_metadata("ident_i32") == {
        "name": "ident_i32",
        "versions": ["1", "3"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [-1, 4]}],
        "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [-1, 4]}],
    }
    assert (await aio.get_model_config("ident_i32"))["max_batch_size"] == 8
    core.is_ready = False
    assert not await aio.is_server_ready()


async def test_the_synchronous_client_reads_the_same(door: HttpDoor) -> None:
    def use(client: triton.InferenceServerClient) -> Any:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("ident_i32")
        return client.get_model_metadata("ident_i32", "3")["versions"], client.get_model_config("ident_i32")["name"]

    assert await in_thread(door, use) == (["1", "3"], "ident_i32")


@pytest.mark.parametrize(
    ("model", "datatype", "array", "status", "told"),
    [
        ("nobody", "FP32", np.ones((1, 2), np.float32), "404", "'nobody'"),
        ("ident_f32", "INT32", np.ones((1, 2), np.int32), "400", "'INT32'"),
        ("ident_i32", "INT32", np.ones((1, 5), np.int32), "400", "[1, 5]"),
        ("ident_i32", "INT32", np.ones((9, 4), np.int32), "400", "1 to 8"),
    ],
)
@pytest.mark.parametrize("is_sync", [True, False])
async def test_errors_arrive_with_status_and_reason(
    door: HttpDoor,
    aio: triton_aio.InferenceServerClient,
    model: str,
    datatype: str,
    array: np.ndarray[Any, Any],
    status: str,
    told: str,
    is_sync: bool,
) -> None:
    sent = inputs(datatype, array, is_binary=True)
    asking = in_thread(door, lambda client: client.infer(model, sent)) if is_sync else aio.infer(model, sent)
    with pytest.raises(InferenceServerException) as caught:
        await asking
    assert caught.value.status() == status
    assert told in caught.value.message()


async def test_sequences_are_refused_by_name(aio: triton_aio.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="sequence_id"):
        await aio.infer("ident_f32", inputs("FP32", np.ones((1, 1), np.float32), is_binary=True), sequence_id=5)


async def test_bytes_that_are_no_text_tell_to_ask_for_binary(aio: triton_aio.InferenceServerClient) -> None:
    sent = inputs("BYTES", np.array([b"\xff\xfe"], object), is_binary=True)
    result = await aio.infer("flat_bytes", sent)
    assert result.as_numpy("OUT").tolist() == [b"\xff\xfe"]
    with pytest.raises(InferenceServerException, match="binary_data"):
        await aio.infer("flat_bytes", sent, outputs=outputs(is_binary=False))


async def test_a_large_tensor_goes_both_ways(door: HttpDoor) -> None:
    array = np.arange(4_000_000, dtype=np.float32).reshape(4, -1)

    def use(client: triton.InferenceServerClient) -> Any:
        return client.infer("ident_f32", inputs("FP32", array, is_binary=True)).as_numpy("OUT")

    np.testing.assert_array_equal(await in_thread(door, use), array)
