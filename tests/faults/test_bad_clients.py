"""Clients that read slowly or never, leave in the middle, or stop sending: the others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import pytest

from contract.streams import MIB
from tests.support.cluster import Cluster, Gateway, known_good
from tests.support.cluster_http import HOST, TIMEOUT, binary_request, infer, json_request, request_bytes
from tests.support.cluster_load import assert_each_ended_once, burst, slowest_s

LARGE = np.arange(5 * MIB // 4, dtype=np.float32).reshape(1, -1)


@dataclass
class Busy:
    """A gateway and a worker that good clients use beside the bad ones."""

    place: Cluster
    gateway: Gateway


@pytest.fixture(scope="module")
def busy(shared_place: Cluster) -> Busy:
    gateway, _ = shared_place.serve("slow_500", "ident_f32")
    return Busy(shared_place, gateway)


class RawSocket:
    """A blocking socket's worth of control over when bytes are read, inside the event loop."""

    def __init__(self, port: int, receive_bytes: int = 0) -> None:
        self._socket = socket.socket()
        if receive_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.setblocking(False)
        self._port = port

    async def send(self, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._port:
            await loop.sock_connect(self._socket, (HOST, self._port))
            self._port = 0
        async with asyncio.timeout(30):
            await loop.sock_sendall(self._socket, payload)

    async def read(self, num_bytes: int, within_s: float = 30.0) -> bytes:
        async with asyncio.timeout(within_s):
            return await asyncio.get_running_loop().sock_recv(self._socket, num_bytes)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def sockets() -> AsyncIterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


async def test_readers_of_large_answers_one_byte_a_second_and_never_disturb_nobody(
    busy: Busy, sockets: contextlib.ExitStack
) -> None:
    gateway = busy.gateway
    body, headers = binary_request(LARGE)
    request = request_bytes(gateway.http_port, "POST", "/v2/models/ident_f32/infer", body, headers)
    slow = [RawSocket(gateway.http_port, 4096) for _ in range(4)]
    never = [RawSocket(gateway.http_port, 4096) for _ in range(4)]
    for raw in (*slow, *never):
        sockets.callback(raw.close)
        await raw.send(request)
    for raw in slow:
        assert await raw.read(1) == b"H"
    await gateway.wait_metric("headrace_open_requests", 0)

    async def drip() -> None:
        while True:
            await asyncio.sleep(1.0)
            for raw in slow:
                await raw.read(1)

    dripping = asyncio.create_task(drip())
    for _ in range(5):
        endings = await burst(gateway.http_port, "ident_f32", 16)
        assert_each_ended_once(endings, 10)
        assert slowest_s(endings) < 3
    dripping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await dripping
    assert gateway.metric("headrace_held_bytes") == 0
    await known_good(gateway)


async def test_who_leaves_while_it_waits_is_never_executed(busy: Busy, sockets: contextlib.ExitStack) -> None:
    place, gateway = busy.place, busy.gateway
    published = gateway.metric("headrace_published_requests_total")
    cancelled = gateway.metric("headrace_cancelled_requests_total")
    running = asyncio.create_task(burst(gateway.http_port, "slow_500", 8, timeout_s=20))
    await gateway.wait_metric("headrace_open_requests", 8)
    leavers = [RawSocket(gateway.http_port) for _ in range(40)]
    for n, raw in enumerate(leavers):
        body = json_request([float(n)], request_id=f"left-{n}")
        await raw.send(request_bytes(gateway.http_port, "POST", "/v2/models/slow_500/infer", body))
    await gateway.wait_metric("headrace_published_requests_total", published + 48)
    for raw in leavers:
        raw.close()
    await gateway.wait_metric("headrace_cancelled_requests_total", cancelled + 40)
    assert_each_ended_once(await running, 20)
    assert_each_ended_once(await burst(gateway.http_port, "slow_500", 1, timeout_s=5), 5)
    # The instance was busy with the eight; at most one micro-batch may have started before they left.
    assert len([i for i in place.num_executed("slow_500") if i.startswith("left")]) <= 8


async def test_who_stops_in_the_middle_of_a_body_holds_nothing_up(busy: Busy, sockets: contextlib.ExitStack) -> None:
    gateway = busy.gateway
    body, headers = binary_request(LARGE)
    request = request_bytes(gateway.http_port, "POST", "/v2/models/ident_f32/infer", body, headers)
    stalled = [RawSocket(gateway.http_port) for _ in range(8)]
    for raw in stalled:
        sockets.callback(raw.close)
        await raw.send(request[: len(request) // 2])
    endings = await burst(gateway.http_port, "ident_f32", 16)
    assert_each_ended_once(endings, 10)
    assert gateway.metric("headrace_open_requests") == 0
    # The rest of a body may come late all the same.
    await stalled[0].send(request[len(request) // 2 :])
    assert (await stalled[0].read(12)) == b"HTTP/1.1 200"
    for raw in stalled[1:]:
        raw.close()
    await known_good(gateway)
    await gateway.wait_metric("headrace_http_connections", 1)


async def test_a_deadline_that_passes_in_the_queue_is_504_on_time_and_not_executed(busy: Busy) -> None:
    place, gateway = busy.place, busy.gateway
    published = gateway.metric("headrace_published_requests_total")
    running = asyncio.create_task(burst(gateway.http_port, "slow_500", 24, timeout_s=20))
    await gateway.wait_metric("headrace_published_requests_total", published + 24)
    impatient = [
        infer(gateway.http_port, "slow_500", json_request([float(n)], request_id=f"late-{n}"), [(TIMEOUT, "300")])
        for n in range(16)
    ]
    answers = await asyncio.gather(*impatient)
    assert {(a.status, a.code) for a in answers} == {(504, "deadline-exceeded")}
    assert all(0.3 <= a.took_s < 0.3 + 0.5 for a in answers)
    assert "deadline" in answers[0].error
    assert_each_ended_once(await running, 20)
    assert_each_ended_once(await burst(gateway.http_port, "slow_500", 1, timeout_s=5), 5)
    assert not [i for i in place.num_executed("slow_500") if i.startswith("late")]


async def test_a_hundred_callers_leave_at_once_and_the_next_one_waits_for_none_of_them(
    busy: Busy, sockets: contextlib.ExitStack
) -> None:
    gateway = busy.gateway
    published = gateway.metric("headrace_published_requests_total")
    leavers = [RawSocket(gateway.http_port) for _ in range(100)]
    for n, raw in enumerate(leavers):
        body = json_request([float(n)] * 8, shape=[8, 1], request_id=f"crowd-{n}")
        await raw.send(request_bytes(gateway.http_port, "POST", "/v2/models/slow_500/infer", body))
    await gateway.wait_metric("headrace_published_requests_total", published + 100)
    for raw in leavers:
        raw.close()
    (ending,) = await burst(gateway.http_port, "slow_500", 1, timeout_s=20)
    assert ending.status == 200
    assert ending.took_s < 5  # fifty seconds of work were queued before it
    await gateway.wait_metric("headrace_held_bytes", 0)


async def test_who_left_while_no_worker_was_there_is_not_executed_by_the_next_one(
    place: Cluster, sockets: contextlib.ExitStack
) -> None:
    gateway, (pool,) = place.serve("slow_500", restart_backoff_s=3.0)
    leavers = [RawSocket(gateway.http_port) for _ in range(60)]
    for n, raw in enumerate(leavers):
        sockets.callback(raw.close)
        body = json_request([float(n)], request_id=f"left-{n}")
        await raw.send(request_bytes(gateway.http_port, "POST", "/v2/models/slow_500/infer", body))
    await gateway.wait_metric("headrace_published_requests_total", 60)
    pool.worker().kill()
    before = sum(place.num_executed("slow_500").values())
    for raw in leavers:
        raw.close()
    await gateway.wait_metric("headrace_open_requests", 0)
    await asyncio.to_thread(place.wait_ready, gateway, "slow_500")
    assert_each_ended_once(await burst(gateway.http_port, "slow_500", 1, timeout_s=15), 15)
    assert sum(place.num_executed("slow_500").values()) == before + 1
