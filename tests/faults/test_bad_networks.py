"""A network between a process and the broker that delays, throttles, cuts and swallows: late answers, no lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from contract.streams import DEAD_AFTER_S
from tests.support.cluster import Cluster, known_good
from tests.support.cluster_http import TIMEOUT, binary_request, infer
from tests.support.cluster_load import Load, assert_each_ended_once, burst, slowest_s
from tests.support.proxy import Proxy

CLEAN = {"broker-away", "no-worker", "unavailable", "model-not-ready"}
HOLE_S = DEAD_AFTER_S + 1.0
"""Long enough to be held for dead, too short for the connection to be given up."""


@pytest.fixture
async def proxy(place: Cluster) -> AsyncIterator[Proxy]:
    async with Proxy(place.broker.port) as found:
        yield found


@pytest.fixture(params=["gateway", "worker"])
def behind(request: pytest.FixtureRequest) -> str:
    """Who is behind the bad network."""
    name: str = request.param
    return name


async def start(place: Cluster, proxy: Proxy, behind: str, *models: str):  # type: ignore[no-untyped-def]
    """A gateway and a worker, one of them behind the proxy."""
    urls = {behind: proxy.url}
    gateway = place.start_gateway(wait=False, broker_url=urls.get("gateway", ""))
    place.start_pool(models, broker_url=urls.get("worker", ""))
    await asyncio.to_thread(place.wait_gateway, gateway)
    await asyncio.to_thread(place.wait_ready, gateway, *models)
    return gateway


async def test_a_delay_is_added_and_nothing_else(place: Cluster, proxy: Proxy, behind: str) -> None:
    gateway = await start(place, proxy, behind, "ident_f32")
    await known_good(gateway)
    proxy.delay_s = 0.2
    endings = await burst(gateway.http_port, "ident_f32", 32)
    assert_each_ended_once(endings, 10)
    assert min(e.took_s for e in endings) >= 0.2
    assert slowest_s(endings) < 4
    assert gateway.metric("headrace_duplicate_answers_total") == 0
    assert gateway.metric("headrace_reconnects_total") == 0


async def test_a_cut_connection_is_made_again_and_requests_inside_their_deadline_are_answered(
    place: Cluster, proxy: Proxy, behind: str
) -> None:
    gateway = await start(place, proxy, behind, "slow_5", "ident_f32")
    async with Load([gateway.http_port], "slow_5", num_callers=8) as load:
        await load.has(50)
        with proxy.away():
            await asyncio.sleep(1.0)  # the fault itself
        await load.has(50)
    assert_each_ended_once(load.endings, load.timeout_s)
    await known_good(gateway)


async def test_a_connection_that_swallows_everything_for_a_while_delays_answers_only(
    place: Cluster, proxy: Proxy, behind: str
) -> None:
    gateway = await start(place, proxy, behind, "slow_5", "ident_f32")
    async with Load([gateway.http_port], "slow_5", num_callers=8) as load:
        await load.has(50)
        with proxy.black_hole():
            await asyncio.sleep(HOLE_S)  # the fault itself
        await load.has(50)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN)
    await asyncio.to_thread(place.wait_ready, gateway, "ident_f32")
    await known_good(gateway)


async def test_what_a_worker_holds_or_queues_for_it_survives_a_hole(place: Cluster, proxy: Proxy, behind: str) -> None:
    gateway = await start(place, proxy, behind, "slow_500", "ident_f32")
    waiting = asyncio.create_task(burst(gateway.http_port, "slow_500", 100, timeout_s=40))
    await gateway.wait_metric("headrace_published_requests_total", 100)
    with proxy.black_hole():
        await asyncio.sleep(HOLE_S)  # the fault itself
    assert_each_ended_once(await waiting, 40)
    await asyncio.to_thread(place.wait_ready, gateway, "ident_f32")
    await known_good(gateway)


async def test_a_hole_that_never_ends_is_found_by_silence_and_gone_around(
    place: Cluster, proxy: Proxy, behind: str
) -> None:
    gateway = await start(place, proxy, behind, "slow_5", "ident_f32")
    num_accepted = proxy.num_accepted
    async with Load([gateway.http_port], "slow_5", num_callers=4, timeout_ms=20_000) as load:
        await load.has(20)
        with proxy.black_hole():
            async with asyncio.timeout(25):  # two pings without a pong, each after two seconds
                while proxy.num_accepted == num_accepted:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await load.has(20)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN)
    await known_good(gateway)


async def test_a_thin_line_carries_large_payloads_slowly_and_small_ones_between_them(
    place: Cluster, proxy: Proxy, behind: str
) -> None:
    gateway = await start(place, proxy, behind, "ident_f32")
    proxy.bytes_per_s = 4_000_000.0
    array = np.arange(2 * 1024 * 1024 // 4, dtype=np.float32).reshape(1, -1)
    body, headers = binary_request(array)
    large, small = await asyncio.gather(
        infer(gateway.http_port, "ident_f32", body, [*headers, (TIMEOUT, "30000")]),
        burst(gateway.http_port, "ident_f32", 8, timeout_s=30),
    )
    assert large.binary() == array.tobytes()
    assert_each_ended_once(small, 30)
