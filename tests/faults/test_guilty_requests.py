"""Requests that kill or hang what runs them: the guilty one is told, everybody else gets an answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from tests.support.cluster import Cluster, Gateway, known_good
from tests.support.cluster_http import TIMEOUT, infer, json_request
from tests.support.cluster_load import Ending, assert_each_ended_once, burst
from tests.support.cluster_parts import Part

KILLER = json_request([13.0], request_id="killer")
HANGER = json_request([99.0], request_id="hanger")


@dataclass
class Own:
    """A worker whose models run in processes of their own, which may die without it."""

    place: Cluster
    gateway: Gateway
    pool: Part


@pytest.fixture(scope="module")
def own(shared_place: Cluster) -> Own:
    gateway, (pool,) = shared_place.serve("crash", "hang", "ident_f32")
    return Own(shared_place, gateway, pool)


async def test_who_kills_the_worker_process_gets_500_and_its_mates_their_answers(place: Cluster) -> None:
    gateway, (pool,) = place.serve("crash_worker", "ident_f32")
    guilty, mates = await asyncio.gather(
        infer(gateway.http_port, "crash_worker", KILLER), burst(gateway.http_port, "crash_worker", 7, timeout_s=30)
    )
    assert (guilty.status, guilty.code) == (500, "poison-request")
    assert "2" in guilty.error
    assert_each_ended_once(mates, 30)
    # The first death says nothing about who did it; the two alone do.
    assert 2 <= place.num_executed("crash_worker")["killer"] <= 3
    pid = pool.worker().pid
    await asyncio.to_thread(place.wait_ready, gateway, "crash_worker", "ident_f32")
    assert_each_ended_once(await burst(gateway.http_port, "crash_worker", 8), 10)
    await known_good(gateway)
    assert pool.worker().pid == pid


async def test_a_killer_among_two_workers_leaves_the_group_serving_others(place: Cluster) -> None:
    gateway, _ = place.serve("crash_worker", "ident_f32", num_workers=2)
    guilty = asyncio.create_task(infer(gateway.http_port, "crash_worker", KILLER))
    others: list[Ending] = []
    while not guilty.done():
        others += await burst(gateway.http_port, "ident_f32", 4, timeout_s=20)
    assert ((await guilty).status, (await guilty).code) == (500, "poison-request")
    # Both workers may be down at one moment: that is said, with when to come back.
    assert_each_ended_once(others, 20, allowed={"no-worker", "model-not-ready"})
    assert sum(e.status == 200 for e in others) > 0
    await asyncio.to_thread(place.wait_ready, gateway, "ident_f32", num_workers=2)
    await known_good(gateway)


async def test_a_model_that_runs_nothing_twice_tells_those_it_took_down(place: Cluster) -> None:
    gateway, _ = place.serve("crash_never")
    guilty = await infer(gateway.http_port, "crash_never", KILLER)
    assert (guilty.status, guilty.code) == (500, "instance-died")
    assert place.num_executed("crash_never") == {"killer": 1}
    await asyncio.to_thread(place.wait_ready, gateway, "crash_never")
    assert_each_ended_once(await burst(gateway.http_port, "crash_never", 8), 10)


async def test_who_kills_only_its_model_process_is_found_without_a_worker_dying(own: Own) -> None:
    gateway, pool = own.gateway, own.pool
    pid = pool.worker().pid
    guilty, mates = await asyncio.gather(
        infer(gateway.http_port, "crash", KILLER), burst(gateway.http_port, "crash", 7, timeout_s=20)
    )
    assert guilty.status == 500
    assert guilty.code in {"instance-died", "poison-request"}
    assert guilty.took_s < 10
    assert_each_ended_once(mates, 20)
    assert_each_ended_once(await burst(gateway.http_port, "crash", 8), 10)
    await known_good(gateway)
    assert pool.worker().pid == pid


async def test_a_model_that_does_not_return_is_ended_and_replaced(own: Own) -> None:
    gateway, pool = own.gateway, own.pool
    pid = pool.worker().pid
    guilty = await infer(gateway.http_port, "hang", HANGER)
    assert (guilty.status, guilty.code) == (500, "execution-timeout")
    assert "max_execution_s" in guilty.error
    assert 1 <= guilty.took_s < 10
    assert_each_ended_once(await burst(gateway.http_port, "hang", 8), 10)
    assert pool.worker().pid == pid


async def test_who_hangs_longer_than_its_deadline_hears_504_on_time(own: Own) -> None:
    gateway = own.gateway
    hanger = json_request([99.0], request_id="impatient")
    guilty = await infer(gateway.http_port, "hang", hanger, [(TIMEOUT, "400")])
    assert (guilty.status, guilty.code) == (504, "deadline-exceeded")
    assert 0.4 <= guilty.took_s < 0.4 + 0.5
    assert_each_ended_once(await burst(gateway.http_port, "hang", 8), 10)
    assert own.place.num_executed("hang")["impatient"] == 1


async def test_the_mates_of_one_that_hangs_are_answered(own: Own) -> None:
    gateway = own.gateway
    guilty, mates = await asyncio.gather(
        infer(gateway.http_port, "hang", HANGER), burst(gateway.http_port, "hang", 7, timeout_s=30)
    )
    assert (guilty.status, guilty.code) == (500, "execution-timeout")
    assert_each_ended_once(mates, 30)


async def test_a_hang_inside_the_worker_process_costs_its_callers_only(place: Cluster) -> None:
    gateway, (pool,) = place.serve("hang_worker", "ident_f32")
    for _ in range(3):  # two threads may be left behind, then the process gives way to a new one
        guilty = await infer(gateway.http_port, "hang_worker", HANGER)
        assert (guilty.status, guilty.code) == (500, "execution-timeout")
        endings = await burst(gateway.http_port, "hang_worker", 4, timeout_s=20)
        assert_each_ended_once(endings, 20, allowed={"no-worker", "model-not-ready", "draining"})
        await asyncio.to_thread(place.wait_ready, gateway, "hang_worker", "ident_f32")
    await known_good(gateway)
    assert pool.is_running
