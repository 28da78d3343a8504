"""A network between a process and the broker that delays, throttles, cuts and swallows: late answers, no lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from contract.streams import DEAD_AFTER_S, MIB
from tests.support.cluster import Cluster, Gateway, cluster, known_good
from tests.support.cluster_http import TIMEOUT, binary_request, infer
from tests.support.cluster_load import Load, assert_each_ended_once, burst, slowest_s
from tests.support.proxy import Proxy

CLEAN = {"broker-away", "no-worker", "unavailable", "model-not-ready"}
MODELS = ("slow_5", "slow_500", "ident_f32")
HOLE_S = DEAD_AFTER_S + 1.0
"""Long enough to be held for dead, too short for the connection to be given up."""


@dataclass
class Line:
    """A gateway and a worker, and the proxy that one of them has before the broker."""

    place: Cluster
    proxy: Proxy
    gateway: Gateway


@pytest.fixture(scope="module", params=["gateway", "worker"])
def wired(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder: Path = tmp_path_factory.mktemp("line")
    with cluster(folder) as place, Proxy(place.broker.port) as proxy:
        urls = {request.param: proxy.url}
        gateway = place.start_gateway(wait=False, broker_url=urls.get("gateway", ""))
        place.start_pool(MODELS, broker_url=urls.get("worker", ""))
        place.wait_gateway(gateway)
        yield Line(place, proxy, gateway)


@pytest.fixture
def line(wired: Line) -> Iterator[Line]:
    """Everything well before and after."""
    wired.place.wait_ready(wired.gateway, *MODELS)
    yield wired
    wired.proxy.be_good()


async def well_again(line: Line) -> None:
    await asyncio.to_thread(line.place.wait_ready, line.gateway, *MODELS)
    await known_good(line.gateway)


async def test_a_delay_is_added_and_nothing_else(line: Line) -> None:
    gateway = line.gateway
    late, reconnects = (gateway.metric(f"headrace_{n}_total") for n in ("duplicate_answers", "reconnects"))
    line.proxy.delay_s = 0.2
    endings = await burst(gateway.http_port, "ident_f32", 32)
    assert_each_ended_once(endings, 10)
    assert min(e.took_s for e in endings) >= 0.2
    # Small messages behind full ones: the worker asks for few at a time until it has seen how small they are.
    assert slowest_s(endings) < 8
    assert gateway.metric("headrace_duplicate_answers_total") == late
    assert gateway.metric("headrace_reconnects_total") == reconnects


async def test_a_cut_connection_is_made_again_and_requests_inside_their_deadline_are_answered(line: Line) -> None:
    async with Load([line.gateway.http_port], "slow_5", num_callers=8) as load:
        await load.has(50)
        with line.proxy.away():
            await asyncio.sleep(1.0)  # the fault itself
        await load.has(50)
    # While the only worker is not connected, who asks anew may be told so.
    assert_each_ended_once(load.endings, load.timeout_s, allowed={"no-worker"})
    await well_again(line)


async def test_a_connection_that_swallows_everything_for_a_while_delays_answers_only(line: Line) -> None:
    async with Load([line.gateway.http_port], "slow_5", num_callers=8) as load:
        await load.has(50)
        with line.proxy.black_hole():
            await asyncio.sleep(HOLE_S)  # the fault itself
        await load.has(50)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN)
    await well_again(line)


async def test_what_a_worker_holds_or_queues_for_it_survives_a_hole(line: Line) -> None:
    published = line.gateway.metric("headrace_published_requests_total")
    waiting = asyncio.create_task(burst(line.gateway.http_port, "slow_500", 64, timeout_s=40))
    await line.gateway.wait_metric("headrace_published_requests_total", published + 64)
    with line.proxy.black_hole():
        await asyncio.sleep(HOLE_S)  # the fault itself
    assert_each_ended_once(await waiting, 40)
    await well_again(line)


async def test_a_hole_that_never_ends_is_found_by_silence_and_gone_around(line: Line) -> None:
    num_accepted = line.proxy.num_accepted
    async with Load([line.gateway.http_port], "slow_5", num_callers=4, timeout_ms=20_000) as load:
        await load.has(20)
        with line.proxy.black_hole():
            async with asyncio.timeout(25):  # two pings without a pong, each after two seconds
                while line.proxy.num_accepted == num_accepted:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await load.has(20)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN)
    await well_again(line)


async def test_a_thin_line_carries_large_payloads_slowly_and_small_ones_between_them(line: Line) -> None:
    line.proxy.bytes_per_s = 4_000_000.0
    array = np.arange(2 * MIB // 4, dtype=np.float32).reshape(1, -1)
    body, headers = binary_request(array)
    large, small = await asyncio.gather(
        infer(line.gateway.http_port, "ident_f32", body, [*headers, (TIMEOUT, "30000")]),
        burst(line.gateway.http_port, "ident_f32", 8, timeout_s=30),
    )
    assert large.binary() == array.tobytes()
    assert_each_ended_once(small, 30)
