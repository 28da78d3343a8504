"""The broker dies, comes back empty, or was never there: no request hangs, new ones work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.streams import MIB, BrokerLimits, blob_stream, online_stream
from tests.support.broker import Broker
from tests.support.cluster import Cluster, cluster, known_good
from tests.support.cluster_http import TIMEOUT, infer, json_request
from tests.support.cluster_load import Load, assert_each_ended_once, burst
from transport.base import TransportError
from transport.connection import connect

CLEAN = {"broker-away", "no-worker", "queue-full", "unavailable", "deadline-exceeded", "model-not-ready"}
"""What a caller may hear while the broker is away."""


async def test_killed_and_restarted_under_load_the_broker_costs_no_request_more_than_its_deadline(
    place: Cluster,
) -> None:
    gateway, (pool,) = place.serve("slow_5", "ident_f32")
    async with Load([gateway.http_port], "slow_5", num_callers=16) as load:
        await load.has(100)
        await place.broker.restart()
        await load.has(100)
    assert_each_ended_once(load.endings, load.timeout_s, allowed=CLEAN)
    assert gateway.metric("headrace_reconnects_total") == 1
    assert pool.has_logged("broker-back")
    await known_good(gateway)


async def test_what_waits_in_the_queue_survives_a_broker_that_comes_back_empty(place: Cluster) -> None:
    gateway, _ = place.serve("slow_50", "ident_f32")
    waiting = asyncio.create_task(burst(gateway.http_port, "slow_50", 100, timeout_s=30))
    await gateway.wait_metric("headrace_published_requests_total", 100)
    await place.broker.restart()
    endings = await waiting
    assert_each_ended_once(endings, 30)
    assert gateway.metric("headrace_resent_requests_total") > 0
    assert_each_ended_once(await burst(gateway.http_port, "slow_50", 16), 10)


async def test_while_the_broker_is_away_new_requests_are_refused_and_the_gateway_is_not_ready(place: Cluster) -> None:
    gateway, (pool,) = place.serve("ident_f32")
    place.broker.kill()
    held = await infer(gateway.http_port, "ident_f32", json_request([1.0]), [(TIMEOUT, "3000")])
    assert (held.status, held.code) == (504, "deadline-exceeded")  # it was accepted in the hope of a short absence
    refused = await infer(gateway.http_port, "ident_f32", json_request([1.0]), [(TIMEOUT, "10000")])
    assert (refused.status, refused.code) == (503, "broker-away")
    assert refused.took_s < 0.5
    assert int(refused.headers["retry-after"]) >= 1
    assert gateway.get("/v2/health/live") == 200
    assert gateway.get("/v2/health/ready") == 503
    await place.broker.start()
    await asyncio.to_thread(place.wait_ready, gateway, "ident_f32")
    await known_good(gateway)
    assert pool.has_logged("broker-back")


async def test_a_request_whose_deadline_passes_while_the_broker_is_away_hears_504_on_time(place: Cluster) -> None:
    gateway, _ = place.serve("slow_500")
    accepted = asyncio.create_task(burst(gateway.http_port, "slow_500", 30, timeout_s=1.2))
    await gateway.wait_metric("headrace_published_requests_total", 30)
    place.broker.kill()
    endings = await accepted
    assert_each_ended_once(endings, 1.2, allowed={"deadline-exceeded"})
    assert any(e.code == "deadline-exceeded" for e in endings)
    assert all(e.took_s >= 1.2 for e in endings if e.code == "deadline-exceeded")
    await place.broker.start()
    await asyncio.to_thread(place.wait_ready, gateway, "slow_500")
    # Those that nobody waits for any more do not stand before new ones.
    (ending,) = await burst(gateway.http_port, "slow_500", 1, timeout_s=5)
    assert ending.status == 200


@pytest.fixture
def brokerless(tmp_path: Path) -> Iterator[Cluster]:
    """Nothing runs yet, the broker neither."""
    with cluster(tmp_path, broker=Broker(tmp_path), starts_broker=False) as found:
        yield found


async def test_gateway_and_worker_may_start_before_their_broker(brokerless: Cluster) -> None:
    place = brokerless
    place.broker_settings = {"connect_timeout_s": 1.0}
    gateway = place.start_gateway(wait=False)
    pool = place.start_pool(["ident_f32"])
    async with asyncio.timeout(30):
        while not (gateway.has_logged("broker-not-there") and pool.has_logged("broker-not-there")):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await place.broker.start()
    await asyncio.to_thread(place.wait_ready, gateway, "ident_f32")
    await known_good(gateway)


async def test_a_worker_starts_on_a_broker_whose_memory_holds_the_streams_once_but_not_twice(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    await broker.start()
    try:
        transports = [await connect(broker.settings, name) for name in ("first", "second")]
        spec = blob_stream(BrokerLimits(blob_max_bytes=600 * MIB))
        for transport in transports:
            await transport.ensure_stream(spec)
        other = online_stream("other", BrokerLimits(online_max_bytes=600 * MIB))
        with pytest.raises(TransportError, match="insufficient memory"):
            await transports[0].ensure_stream(other)
        for transport in transports:
            await transport.close()
    finally:
        broker.kill()
