"""Payloads around and far over the broker's message limit: they work, or 413 says both sizes; nothing else is hurt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from contract.streams import MIB
from contract.subjects import BLOB_STREAM
from gateway.settings import GatewaySettings
from tests.cases.conftest import Server
from tests.support.broker import Broker
from tests.support.cluster import Cluster, cluster, known_good
from tests.support.cluster_http import TIMEOUT, Connection, binary_request, infer, json_request, request_bytes
from tests.support.cluster_load import assert_each_ended_once, burst, slowest_s
from transport.connection import connect

BINARY_OUTPUT = {"binary_data_output": True}
PATIENT = [(TIMEOUT, "60000")]
MAX_REQUEST_BYTES = GatewaySettings().max_request_bytes
MAX_JSON_BYTES = GatewaySettings().max_json_bytes


def numbers(num_bytes: int) -> np.ndarray:
    """One row whose every element differs from its neighbours, so that parts out of order would show."""
    return np.arange(num_bytes // 4, dtype=np.float32).reshape(1, -1)


async def echoed(port: int, array: np.ndarray) -> float:
    """Seconds for a binary round trip, which must be bit-exact."""
    body, headers = binary_request(array)
    answer = await infer(port, "ident_f32", body, [*headers, *PATIENT])
    assert answer.binary() == array.tobytes()
    return answer.took_s


@pytest.mark.parametrize("mib", [0.9, 1.0, 1.1, 3, 40, 64])
async def test_a_tensor_of_this_size_goes_both_ways_in_binary(server: Server, mib: float) -> None:
    took_s, beside = await asyncio.gather(
        echoed(server.port, numbers(int(mib * MIB))), burst(server.port, "slow_500", 8)
    )
    assert took_s < 15
    assert_each_ended_once(beside, 10)
    assert slowest_s(beside) < 4


@pytest.mark.parametrize("surplus", [-70_000, -65_600, -65_536, -65_000, -1_000, -1, 0, 1, 1_000])
async def test_no_size_near_the_limit_falls_between_the_two_ways(server: Server, surplus: int) -> None:
    await echoed(server.port, numbers(MIB + surplus * 4))
    array = numbers(MIB + surplus * 4)
    count = json_request([array.size], name="COUNT", datatype="INT64", shape=[1], parameters=BINARY_OUTPUT)
    answer = await infer(server.port, "grow", count, PATIENT)
    assert answer.binary() == array.tobytes()


@pytest.mark.parametrize("mib", [0.9, 1.1, 3])
async def test_a_tensor_of_this_size_goes_both_ways_in_json(server: Server, mib: float) -> None:
    values = list(range(int(mib * MIB) // 4))
    answer = await infer(server.port, "ident_f32", json_request(values), PATIENT)
    assert answer.data == values


async def test_a_text_of_two_megabytes_goes_both_ways(server: Server) -> None:
    text = "naïve " * 350_000
    body = json_request([text], datatype="BYTES", shape=[1])
    assert (await infer(server.port, "ident_bytes", body, PATIENT)).data == [text]


async def test_twenty_answers_of_five_mebibytes_at_once_to_tiny_requests(server: Server) -> None:
    body = json_request([5 * MIB // 4], name="COUNT", datatype="INT64", shape=[1], parameters=BINARY_OUTPUT)
    answers, beside = await asyncio.gather(
        asyncio.gather(*(infer(server.port, "grow", body, PATIENT) for _ in range(20))),
        burst(server.port, "ident_f32", 16),
    )
    assert all(a.binary() == numbers(5 * MIB).tobytes() for a in answers)
    assert_each_ended_once(beside, 10)


async def test_a_body_over_the_doors_limit_is_refused_by_its_announcement(server: Server) -> None:
    connection = Connection(server.port)
    await connection.open()
    num_bytes = MAX_REQUEST_BYTES + 1
    head = request_bytes(server.port, "POST", "/v2/models/ident_f32/infer")
    await connection.send(head.replace(b"content-length: 0", b"content-length: %d" % num_bytes))
    async with asyncio.timeout(1):
        status, headers, body = await connection.receive()
    connection.close()
    assert (status, headers["headrace-error"]) == (413, "too-large")
    error = json.loads(body)["error"]
    assert str(num_bytes) in error
    assert str(MAX_REQUEST_BYTES) in error
    await known_good(server.gateway)


async def test_forty_mebibytes_as_json_are_refused_with_both_sizes(server: Server) -> None:
    body = json_request([0.5]).replace(b"[0.5]", b"[" + b"1.0," * (10 * MIB) + b"1.0]")
    answer = await infer(server.port, "ident_f32", body)
    assert (answer.status, answer.code) == (413, "too-large")
    assert str(len(body)) in answer.error
    assert str(MAX_JSON_BYTES) in answer.error
    assert answer.took_s < 2
    await known_good(server.gateway)


async def test_nothing_large_is_left_behind_in_the_broker(server: Server) -> None:
    transport = await connect(server.place.broker.settings, "looker")
    try:
        payload = await transport.request(f"$JS.API.STREAM.INFO.{BLOB_STREAM}", b"", 5)
        assert json.loads(payload)["state"]["bytes"] == 0
    finally:
        await transport.close()


@pytest.fixture
def small_limit(tmp_path: Path) -> Iterator[Cluster]:
    """A broker that takes a quarter of the usual message."""
    with cluster(tmp_path, broker=Broker(tmp_path, max_payload=256 * 1024)) as found:
        yield found


async def test_the_limit_is_the_brokers_own_and_not_a_number_in_the_code(small_limit: Cluster) -> None:
    gateway, _ = small_limit.serve("ident_f32", "grow")
    for kib in (100, 200, 250, 256, 300, 900, 3_000):
        await echoed(gateway.http_port, numbers(kib * 1024))
    # Many that fit one by one, but not together, answered in one micro-batch.
    bodies = [binary_request(numbers(50 * 1024) + n) for n in range(16)]
    answers = await asyncio.gather(*(infer(gateway.http_port, "ident_f32", b, h) for b, h in bodies))
    assert [a.binary() for a in answers] == [b[-50 * 1024 :] for b, _ in bodies]
    assert gateway.metric("headrace_reconnects_total") == 0
