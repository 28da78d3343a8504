"""Gateways that die, freeze or leave in order while others and the workers go on."""

from __future__ import annotations

import asyncio
import signal

from contract.streams import DEAD_AFTER_S
from tests.support.cluster import Cluster, known_good
from tests.support.cluster_http import TIMEOUT, Connection, ConnectionEnded, json_request, request_bytes
from tests.support.cluster_load import Load, assert_each_ended_once, burst

WAITING = 60
FULL = 8
"""Rows of a request that fills a micro-batch of the fixtures."""


async def test_what_a_dead_gateway_had_queued_is_dropped_and_others_take_its_place(place: Cluster) -> None:
    dying = place.start_gateway("dying", wait=False)
    gateway, _ = place.serve("slow_500", "ident_f32")
    place.wait_ready(dying, "slow_500")
    connections = [Connection(dying.http_port) for _ in range(WAITING)]
    for n, connection in enumerate(connections):
        await connection.open()
        body = json_request([float(n)] * FULL, shape=[FULL, 1], request_id=f"orphan-{n}")
        path = "/v2/models/slow_500/infer"
        await connection.send(request_bytes(dying.http_port, "POST", path, body, [(TIMEOUT, "120000")]))
    await dying.wait_metric("headrace_published_requests_total", WAITING)
    dying.kill()
    # Behind 30 s of work whose callers are gone: answered as soon as those are known to be gone.
    endings = await burst(gateway.http_port, "slow_500", 8, timeout_s=20)
    assert_each_ended_once(endings, 20)
    assert max(e.took_s for e in endings) < DEAD_AFTER_S + 7
    num_orphans = len([i for i in place.num_executed("slow_500") if i.startswith("orphan")])
    assert num_orphans < WAITING / 2
    # And none is executed any more.
    assert_each_ended_once(await burst(gateway.http_port, "slow_500", 8), 10)
    assert len([i for i in place.num_executed("slow_500") if i.startswith("orphan")]) == num_orphans
    for connection in connections:
        connection.close()


async def test_of_two_gateways_one_is_killed_and_the_other_does_not_notice(place: Cluster) -> None:
    dying = place.start_gateway("dying", wait=False)
    gateway, _ = place.serve("slow_5", "ident_f32")
    place.wait_ready(dying, "slow_5")
    async with Load([gateway.http_port], "slow_5", num_callers=8) as mine:
        async with Load([dying.http_port], "slow_5", num_callers=8) as theirs:
            await mine.has(50)
            await theirs.has(50)
            dying.kill()
        await mine.has(100)
    assert_each_ended_once(mine.endings, mine.timeout_s)
    assert_each_ended_once(theirs.endings, theirs.timeout_s, allowed={"refused", "connection-ended"})


async def test_a_frozen_gateway_answers_what_it_had_accepted_once_it_wakes_up(place: Cluster) -> None:
    gateway, _ = place.serve("slow_500", "ident_f32")
    waiting = asyncio.create_task(burst(gateway.http_port, "slow_500", 56, timeout_s=40))
    await gateway.wait_metric("headrace_published_requests_total", 56)
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(DEAD_AFTER_S + 1.5)  # the fault itself: workers drop what it had queued
    finally:
        gateway.process.send_signal(signal.SIGCONT)
    assert_each_ended_once(await waiting, 40)
    await known_good(gateway)


async def test_a_gateway_that_is_asked_to_stop_finishes_what_it_accepted(place: Cluster) -> None:
    gateway, _ = place.serve("slow_500")
    waiting = asyncio.create_task(burst(gateway.http_port, "slow_500", 20, timeout_s=20))
    await gateway.wait_metric("headrace_open_requests", 20)
    stopping = asyncio.create_task(asyncio.to_thread(gateway.terminate))
    assert_each_ended_once(await waiting, 20)
    assert await stopping == 0


async def test_a_gateway_whose_launcher_is_gone_goes_too(place: Cluster) -> None:
    gateway, _ = place.serve("slow_500")
    connection = Connection(gateway.http_port)
    await connection.open()
    await connection.send(request_bytes(gateway.http_port, "POST", "/v2/models/slow_500/infer", json_request([1.0])))
    await gateway.wait_metric("headrace_open_requests", 1)
    gateway.was_ended = True
    assert gateway.process.stdin is not None
    gateway.process.stdin.close()
    try:
        status, headers, _ = await connection.receive()
        assert status in {200, 503}, headers
    except ConnectionEnded:
        pass
    assert await asyncio.to_thread(gateway.process.wait, 15) == 0
    connection.close()
