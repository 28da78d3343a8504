"""Every process is replaced in turn under steady load through a balancer: nobody's request fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.cluster import Cluster, Gateway
from tests.support.cluster_http import Connection, ask
from tests.support.cluster_load import MARGIN_S, Ending, assert_each_ended_once, call_once
from tests.support.cluster_parts import Part

MODEL = "slow_5"
TIMEOUT_S = 10.0
NUM_CALLERS = 12
PROBE_S = 0.1
BETWEEN = 60
"""Right answers between two steps."""


class Balancer:
    """Sends to ports that answered the last probe of readiness; tries another only if a connection was refused."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._ready = set(ports)
        self._turn = 0
        self.endings: list[Ending] = []
        self._stop = asyncio.Event()
        self._news = asyncio.Condition()

    async def has(self, count: int, within_s: float = 30.0) -> None:
        wanted = len(self.endings) + count
        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(lambda: len(self.endings) >= wanted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call()) for _ in range(NUM_CALLERS)]
        probing = asyncio.create_task(self._probe())
        try:
            yield
        finally:
            self._stop.set()
            async with asyncio.timeout(TIMEOUT_S + MARGIN_S + 5):
                await asyncio.gather(*tasks, probing)

    def _choose(self) -> int:
        ready = sorted(self._ready) or self._ports
        self._turn += 1
        return ready[self._turn % len(ready)]

    async def _probe(self) -> None:
        while not self._stop.is_set():
            for port in self._ports:
                status = 0
                with contextlib.suppress(Exception):
                    status = (await ask(port, "GET", "/v2/health/ready", within_s=1.0)).status
                (self._ready.add if status == 200 else self._ready.discard)(port)
            await asyncio.sleep(PROBE_S)

    async def _call(self) -> None:
        """Connections are kept alive per gateway, as a balancer's are."""
        kept: dict[int, Connection] = {}
        while not self._stop.is_set():
            for _ in range(20):
                port = self._choose()
                ending = await call_once(kept.setdefault(port, Connection(port)), MODEL, timeout_s=TIMEOUT_S)
                if ending.code != "refused":
                    break
                self._ready.discard(port)
            self.endings.append(ending)
            async with self._news:
                self._news.notify_all()
        for connection in kept.values():
            connection.close()


async def test_two_gateways_and_two_workers_are_restarted_in_turn_and_no_request_fails(place: Cluster) -> None:
    gateways: list[Gateway] = [place.start_gateway(f"gateway-{n}", wait=False) for n in range(2)]
    pools: list[Part] = [place.start_pool([MODEL], f"pool-{n}") for n in range(2)]
    for gateway in gateways:
        place.wait_gateway(gateway)
        place.wait_ready(gateway, MODEL, num_workers=2)
    balancer = Balancer([g.http_port for g in gateways])
    async with balancer.running():
        await balancer.has(BETWEEN)
        for n, gateway in enumerate(gateways):
            assert await asyncio.to_thread(gateway.terminate) == 0
            await balancer.has(BETWEEN)
            ports = (gateway.http_port, gateway.metrics_port)
            gateways[n] = await asyncio.to_thread(place.start_gateway, f"gateway-{n}-new", ports=ports)
            await balancer.has(BETWEEN)
        for n, pool in enumerate(pools):
            assert await asyncio.to_thread(pool.terminate) == 0
            await balancer.has(BETWEEN)
            pools[n] = place.start_pool([MODEL], f"pool-{n}-new")
            await asyncio.to_thread(place.wait_pool, gateways[0], pools[n], MODEL)
            await balancer.has(BETWEEN)
    assert_each_ended_once(balancer.endings, TIMEOUT_S)


async def test_a_worker_that_is_asked_to_stop_hands_its_queue_to_the_others(place: Cluster) -> None:
    gateway, (first, _) = place.serve("slow_500", num_workers=2)
    connections = [Connection(gateway.http_port) for _ in range(32)]
    calls = [asyncio.create_task(call_once(c, "slow_500", timeout_s=30)) for c in connections]
    await gateway.wait_metric("headrace_published_requests_total", 32)
    assert await asyncio.to_thread(first.terminate) == 0
    endings = await asyncio.gather(*calls)
    assert_each_ended_once(endings, 30)
    # What it ran it answered, what it had not begun it handed back: nothing ran twice.
    assert set(place.num_executed("slow_500").values()) == {1}
    for connection in connections:
        connection.close()


async def test_the_only_worker_is_replaced_in_order_and_what_waits_is_answered_by_the_next(place: Cluster) -> None:
    gateway, (old,) = place.serve("slow_500")
    connections = [Connection(gateway.http_port) for _ in range(24)]
    calls = [asyncio.create_task(call_once(c, "slow_500", timeout_s=30)) for c in connections]
    await gateway.wait_metric("headrace_published_requests_total", 24)
    assert await asyncio.to_thread(old.terminate) == 0
    place.start_pool(["slow_500"], "new")
    endings = await asyncio.gather(*calls)
    assert_each_ended_once(endings, 30)
    for connection in connections:
        connection.close()
