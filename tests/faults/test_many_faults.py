"""One fault after another under load, large payloads and both doors included: what holds for each holds for all."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from contract.streams import ACK_WAIT_S, MIB
from tests.support.cluster import Cluster, Gateway, known_good
from tests.support.cluster_http import TIMEOUT, binary_request, infer, json_request
from tests.support.cluster_load import MARGIN_S, NUMBERS, Load, assert_each_ended_once
from transport.base import NoResponders, TransportError
from transport.connection import connect

CLEAN = {"broker-away", "no-worker", "unavailable", "model-not-ready", "queue-full", "deadline-exceeded"}
MODELS = ("slow_5", "slow_50", "ident_f32")


async def large_ones(gateway: Gateway, stop: asyncio.Event, ended: list[int]) -> None:
    """Payloads by reference all the while; each is right or refused cleanly, inside its deadline."""
    timeout_s = 15.0
    while not stop.is_set():
        array = np.full((1, 3 * MIB // 4), float(next(NUMBERS)), np.float32)
        body, headers = binary_request(array)
        answer = await infer(
            gateway.http_port, "ident_f32", body, [*headers, (TIMEOUT, str(int(timeout_s * 1000)))], timeout_s + 10
        )
        assert answer.took_s < timeout_s + MARGIN_S + 1
        if answer.status == 200:
            assert answer.binary() == array.tobytes()
        else:
            assert answer.code in CLEAN, (answer.status, answer.body[:300])
            await asyncio.sleep(0.05)
        ended.append(answer.status)


async def test_a_dozen_faults_in_a_row_lose_nothing(place: Cluster) -> None:
    gateway, pools = place.serve(*MODELS, num_workers=2)
    dice = random.Random(7)  # the same faults each time, so that a failure can be seen again

    async def kill_a_worker() -> None:
        for worker in dice.choice(pools).workers()[:1]:
            worker.kill()

    async def freeze_a_worker() -> None:
        for worker in dice.choice(pools).workers()[:1]:
            worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.2 * ACK_WAIT_S)
            worker.send_signal(signal.SIGCONT)

    async def restart_the_broker() -> None:
        await place.broker.restart()

    async def pause_the_broker() -> None:
        with place.broker.pause():
            await asyncio.sleep(1.5)

    async def freeze_the_gateway() -> None:
        gateway.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        gateway.process.send_signal(signal.SIGCONT)

    faults: list[Callable[[], Awaitable[None]]] = [
        kill_a_worker,
        freeze_a_worker,
        restart_the_broker,
        pause_the_broker,
        freeze_the_gateway,
    ]
    order = [*faults, *dice.sample(faults, len(faults)), restart_the_broker, kill_a_worker]
    stop, ended = asyncio.Event(), list[int]()
    large = asyncio.create_task(large_ones(gateway, stop, ended))
    async with Load([gateway.http_port], "slow_5", num_callers=8, timeout_ms=15_000) as tiny:
        async with Load([gateway.http_port], "slow_50", num_callers=8, timeout_ms=15_000) as slow:
            for fault in order:
                await tiny.has(20)
                await fault()
            await tiny.has(20)
            await slow.has(20)
        stop.set()
        await large
    for load in (tiny, slow):
        # One may be frozen while the other is dead; nothing else is a reason not to answer.
        assert_each_ended_once(load.endings, load.timeout_s, allowed={"no-worker", "model-not-ready"})
    assert ended.count(200) > 0
    await asyncio.to_thread(place.wait_ready, gateway, *MODELS)
    await known_good(gateway)
    assert gateway.metric("headrace_open_requests") == 0
    assert gateway.metric("headrace_held_bytes") == 0


@pytest.mark.parametrize("seconds", [3.0, 8.0])
async def test_a_broker_that_hangs_and_goes_on_costs_time_and_no_request(place: Cluster, seconds: float) -> None:
    gateway, _ = place.serve("slow_5", "ident_f32")
    async with Load([gateway.http_port], "slow_5", num_callers=8, timeout_ms=25_000) as load:
        await load.has(50)
        with place.broker.pause():
            await asyncio.sleep(seconds)  # the fault itself
        await load.has(50)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN - {"deadline-exceeded"})
    await known_good(gateway)


async def test_a_broker_that_dies_while_large_payloads_travel_leaves_none_hanging(place: Cluster) -> None:
    gateway, _ = place.serve("ident_f32")
    array = np.arange(24 * MIB // 4, dtype=np.float32).reshape(1, -1)
    body, headers = binary_request(array)
    for moment_s in (0.05, 0.3):
        calls = [
            asyncio.create_task(infer(gateway.http_port, "ident_f32", body, [*headers, (TIMEOUT, "20000")]))
            for _ in range(3)
        ]
        await asyncio.sleep(moment_s)  # somewhere in the middle
        await place.broker.restart()
        for answer in await asyncio.gather(*calls):
            assert answer.took_s < 20 + MARGIN_S + 1
            if answer.status == 200:
                assert answer.binary() == array.tobytes()
            else:
                assert answer.code in CLEAN, (answer.status, answer.body[:300])
        await asyncio.to_thread(place.wait_ready, gateway, "ident_f32")
        await known_good(gateway)
    await gateway.wait_metric("headrace_held_bytes", 0)


async def test_callers_over_nats_are_answered_through_a_workers_death_and_told_when_nobody_serves(
    place: Cluster,
) -> None:
    gateway, (first, second) = place.serve("slow_50", num_workers=2, restart_backoff_s=20.0)
    transport = await connect(place.broker.settings, "caller")
    try:

        async def call(number: int) -> None:
            subject = "infer.default.default.slow_50"
            answer = json.loads(await transport.request(subject, json_request([float(number)]), 20))
            assert answer["outputs"][0]["data"] == [number]

        calls = [asyncio.create_task(call(n)) for n in range(60)]
        await gateway.wait_metric("headrace_published_requests_total", 60)
        first.worker().kill()
        await asyncio.gather(*calls)
        second.worker().kill()
        async with asyncio.timeout(10):
            while await asyncio.to_thread(gateway.is_ready, "slow_50"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        refused = json.loads(await transport.request("infer.default.default.slow_50", json_request([1.0]), 5))
        assert refused["code"] == "no-worker"
        assert await asyncio.to_thread(gateway.terminate) == 0
        with pytest.raises(NoResponders):
            await transport.request("infer.default.default.slow_50", json_request([1.0]), 5)
    except TransportError as e:
        raise AssertionError(str(e)) from e
    finally:
        await transport.close()
