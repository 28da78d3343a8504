"""What tritonclient's public HTTP examples do with Triton's `simple` model, against `add_sub`: sums and differences."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.cases.conftest import Server
from tests.support.cluster_http import HOST

FIRST = np.arange(16, dtype=np.float32).reshape(1, 16)
SECOND = np.full((1, 16), 2, np.float32)


def tensors(first: np.ndarray = FIRST, *, forms: tuple[bool, bool] = (False, True)) -> list[triton.InferInput]:
    """The two inputs, as `simple_http_infer_client.py` makes them: one as JSON, one in binary."""
    found = []
    for name, array, is_binary in (("INPUT0", first, forms[0]), ("INPUT1", np.full_like(first, 2), forms[1])):
        tensor = triton.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array, binary_data=is_binary)
        found.append(tensor)
    return found


async def with_client(server: Server, use: Any, **options: Any) -> Any:
    def run() -> Any:
        with triton.InferenceServerClient(f"{HOST}:{server.port}", network_timeout=30, **options) as client:
            return use(client)

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
async def test_simple_http_infer_client(server: Server, coding: str | None) -> None:
    def use(client: triton.InferenceServerClient) -> Any:
        outputs = [
            triton.InferRequestedOutput("OUTPUT0", binary_data=True),
            triton.InferRequestedOutput("OUTPUT1", binary_data=False),
        ]
        return client.infer(
            "add_sub",
            tensors(),
            outputs=outputs,
            query_params={"test_1": 1, "test_2": 2},
            headers={"my-header": "x"},
            request_compression_algorithm=coding,
            response_compression_algorithm=coding,
        )

    result = await with_client(server, use)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)


async def test_simple_http_async_infer_client(server: Server) -> None:
    """Requests in flight at once from green threads, results fetched afterwards."""

    def use(client: triton.InferenceServerClient) -> Any:
        asked = [client.async_infer("add_sub", tensors(FIRST + n), request_id=str(n)) for n in range(40)]
        return [a.get_result(timeout=30) for a in asked]

    for n, result in enumerate(await with_client(server, use, concurrency=8)):
        assert result.get_response()["id"] == str(n)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + n + SECOND)


async def test_image_client(server: Server) -> None:
    """Classes of every row of a batch, of a model that ONNX Runtime runs."""
    rows = np.concatenate([FIRST, FIRST[:, ::-1]])

    def use(client: triton.InferenceServerClient) -> Any:
        outputs = [triton.InferRequestedOutput("OUTPUT0", class_count=2), triton.InferRequestedOutput("OUTPUT1")]
        return client.infer("add_sub", tensors(np.ascontiguousarray(rows)), outputs=outputs)

    result = await with_client(server, use)
    wanted = [[b"17.000000:15", b"16.000000:14"], [b"17.000000:0", b"16.000000:1"]]
    assert result.as_numpy("OUTPUT0").tolist() == wanted
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), rows - 2)


async def test_rows_and_classes_meet_in_a_model_that_runs_in_the_loop(server: Server) -> None:
    def use(client: triton.InferenceServerClient) -> Any:
        classes = [triton.InferRequestedOutput("OUTPUT0", class_count=1)]
        asked = [
            client.async_infer("add_sub", tensors(FIRST + n), outputs=classes if n % 2 else None) for n in range(40)
        ]
        return [a.get_result(timeout=30).as_numpy("OUTPUT0").tolist() for a in asked]

    for n, found in enumerate(await with_client(server, use, concurrency=8)):
        assert found == ([[f"{17 + n:f}:15".encode()]] if n % 2 else (FIRST + n + 2).tolist())


async def test_simple_http_health_metadata(server: Server) -> None:
    def use(client: triton.InferenceServerClient) -> None:
        assert client.is_server_live(query_params={"test_1": 1})
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.get_server_metadata()["name"]
        metadata = client.get_model_metadata("add_sub")
        assert metadata["platform"] == "onnxruntime_onnx"
        assert [t["shape"] for t in metadata["inputs"]] == [[-1, 16], [-1, 16]]
        assert client.get_model_config("add_sub")["max_batch_size"] == 32

    await with_client(server, use)
