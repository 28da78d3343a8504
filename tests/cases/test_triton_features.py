"""What tritonclient's users switch on: compression both ways and the classification extension, through to a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.cases.conftest import Server
from tests.support.cluster_http import HOST, Connection, json_request

LOGITS = np.array([[0.25, -1.5, 3.0, 0.5], [4.0, 4.0, -2.0, 1.0]], np.float32)
CODINGS = (None, "gzip", "deflate")


async def infer(server: Server, model: str, array: np.ndarray, *, is_sync: bool, k: int = 0, **options: Any) -> Any:
    """One request by tritonclient, binary both ways."""
    tensor = triton.InferInput("INPUT0", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=options.pop("is_binary_in", True))
    wanted = triton.InferRequestedOutput("OUTPUT0", binary_data=options.pop("is_binary_out", True), class_count=k)
    url = f"{HOST}:{server.port}"
    if not is_sync:
        async with triton_aio.InferenceServerClient(url) as client:
            return await client.infer(model, [tensor], outputs=[wanted], **options)

    def run() -> Any:
        with triton.InferenceServerClient(url, network_timeout=30) as client:
            return client.infer(model, [tensor], outputs=[wanted], **options)

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize("request_coding", CODINGS)
@pytest.mark.parametrize("response_coding", CODINGS)
async def test_compression_changes_no_bit(
    server: Server, request_coding: str | None, response_coding: str | None, is_sync: bool
) -> None:
    for columns in (3, 60_000):
        array = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
        for is_binary in (True, False):
            result = await infer(
                server,
                "ident_f32",
                array,
                is_sync=is_sync,
                is_binary_in=is_binary,
                is_binary_out=is_binary,
                request_compression_algorithm=request_coding,
                response_compression_algorithm=response_coding,
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize("is_binary_out", [True, False])
async def test_classes_come_as_tritonclient_reads_them(server: Server, is_binary_out: bool, is_sync: bool) -> None:
    result = await infer(server, "labelled", LOGITS, is_sync=is_sync, k=2, is_binary_out=is_binary_out)
    found = result.as_numpy("OUTPUT0")
    texts = [[t if isinstance(t, str) else t.decode() for t in row] for row in found]
    assert texts == [["3.000000:2:positive", "0.500000:3"], ["4.000000:0:negative", "4.000000:1:neutral"]]
    assert result.get_output("OUTPUT0")["datatype"] == "BYTES"


async def test_a_model_without_labels_has_classes_too(server: Server) -> None:
    result = await infer(server, "ident_f32", LOGITS, is_sync=True, k=1, response_compression_algorithm="gzip")
    assert result.as_numpy("OUTPUT0").tolist() == [[b"3.000000:2"], [b"4.000000:0"]]


async def test_rows_and_classes_of_callers_that_meet_are_not_mixed_up(server: Server) -> None:
    async def ask(at: int) -> bool:
        array = np.full((1, 3), at, np.float32)
        result = await infer(server, "labelled", array, is_sync=False, k=at % 2)
        wanted = [[f"{at:f}:0:negative".encode()]] if at % 2 else array.tolist()
        return bool(result.as_numpy("OUTPUT0").tolist() == wanted)

    assert all(await asyncio.gather(*(ask(at) for at in range(40))))


async def test_classes_of_what_is_no_number_are_refused(server: Server) -> None:
    connection = Connection(server.port)
    body = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["a"]}],"outputs":[%b]}' % (
        b'{"name":"OUTPUT0","parameters":{"classification":1}}'
    )
    answer = await connection.ask("POST", "/v2/models/ident_bytes/infer", body)
    assert answer.status == 400
    assert "classification" in answer.error
    connection.close()


async def test_metadata_says_what_is_there(server: Server) -> None:
    async with triton_aio.InferenceServerClient(f"{HOST}:{server.port}") as client:
        extensions = set((await client.get_server_metadata())["extensions"])
    assert {"binary_tensor_data", "classification"} <= extensions
    assert not extensions & {"sequence", "system_shared_memory", "cuda_shared_memory", "trace", "logging"}


REFUSED: dict[str, Callable[[dict[str, Any]], None]] = {
    "sequence_id": lambda body: body.update(parameters={"sequence_id": 7}),
    "sequence_start": lambda body: body.update(parameters={"sequence_start": True}),
    "sequence_end": lambda body: body.update(parameters={"sequence_end": False}),
    "headers": lambda body: body.update(parameters={"headers": "x"}),
    "triton_enable_empty_final_response": lambda body: body.update(
        parameters={"triton_enable_empty_final_response": True}
    ),
    "shared_memory_region": lambda body: body["inputs"][0].update(parameters={"shared_memory_region": "r"}),
    "shared_memory_offset": lambda body: body.update(
        outputs=[{"name": "OUTPUT0", "parameters": {"shared_memory_offset": 0}}]
    ),
    "classification": lambda body: body.update(outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}]),
}


@pytest.mark.parametrize("parameter", REFUSED)
async def test_what_is_not_supported_is_refused_by_its_name(server: Server, parameter: str) -> None:
    body = json.loads(json_request([1.0]))
    REFUSED[parameter](body)
    connection = Connection(server.port)
    answer = await connection.ask("POST", "/v2/models/ident_f32/infer", json.dumps(body).encode())
    assert answer.status == 400
    assert f"'{parameter}'" in answer.error
    connection.close()


async def test_tritonclients_sequence_arguments_are_refused_in_words(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="sequence_id"):
        await infer(server, "ident_f32", LOGITS, is_sync=False, sequence_id=3, sequence_start=True)
