"""`Idempotency-Key` on two gateways' HTTP doors over one broker, in process and over nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from contract.errors import DeadlineExceeded, HeadraceError, ModelFailed, QueueFull
from gateway.http.server import HttpDoor
from gateway.idempotency.keys import Keys, Taken
from gateway.idempotency.walk import End
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore, RawClient, Reply, floats, http, identify, numbers
from tests.support.transports import Transports
from tests.support.waiting import until
from transport.nats_transport import NatsTransport

KEY = "Idempotency-Key: k-1"
MAX_ANSWER_BYTES = 4_000


@dataclass
class Place:
    core: EchoCore
    doors: list[HttpDoor]
    transports: list[NatsTransport]

    async def ask(self, door: int, body: bytes, *headers: str) -> Reply:
        async with RawClient(self.doors[door].port) as client:
            return await client.ask(http(body, *(headers or (KEY,))))


@pytest.fixture
async def place(transports: Transports) -> AsyncIterator[Place]:
    core, doors, made = EchoCore(), [], []
    for _ in range(2):
        transport = await transports.make()
        settings = GatewaySettings(http_port=0, metrics_port=0)
        door = HttpDoor(core, identify, settings, numbers, Keys(transport, MAX_ANSWER_BYTES))
        await door.start()
        doors.append(door)
        made.append(transport)
    yield Place(core, doors, made)
    for door in doors:
        await door.close()


async def test_a_retry_gets_the_stored_answer_from_either_gateway(place: Place) -> None:
    first = await place.ask(0, floats(1, id="a"))
    assert (first.status, "idempotent-replayed" in first.headers) == (200, False)
    for door in (0, 1):
        again = await place.ask(door, floats(1, id="a"))
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
    assert len(place.core.requests) == 1


async def test_retries_attach_to_the_request_that_runs(place: Place) -> None:
    place.core.is_holding = True
    asking = [asyncio.ensure_future(place.ask(n % 2, floats(2))) for n in range(6)]
    await until(lambda: len(place.core.held) == 1)
    place.core.held[0].answer()
    answers = await asyncio.gather(*asking)
    assert [a.status for a in answers] == [200] * 6
    assert sum("idempotent-replayed" in a.headers for a in answers) == 5
    assert len(place.core.requests) == 1


async def test_the_request_of_a_caller_that_left_is_there_for_its_retry(place: Place) -> None:
    place.core.is_holding = True
    async with RawClient(place.doors[0].port) as client:
        client.send(http(floats(2), KEY))
        await until(lambda: len(place.core.held) == 1)
    retry = asyncio.ensure_future(place.ask(1, floats(2)))
    assert not place.core.held[0].is_cancelled
    place.core.held[0].answer()
    assert (await retry).headers["idempotent-replayed"] == "true"
    assert len(place.core.requests) == 1


@pytest.mark.parametrize("is_running", [False, True])
async def test_the_same_key_with_another_body_is_refused_for_good(place: Place, is_running: bool) -> None:
    place.core.is_holding = is_running
    first = asyncio.ensure_future(place.ask(0, floats(1)))
    await until(lambda: len(place.core.requests) == 1)
    if not is_running:
        await first
    other = await place.ask(1, floats(2))
    assert (other.status, other.headers["x-should-retry"]) == (422, "false")
    assert other.headers["headrace-error"] == "idempotency-mismatch"
    for held in place.core.held:
        held.answer()
    assert (await first).status == 200
    assert len(place.core.requests) == 1


async def test_another_key_and_no_key_run_on_their_own(place: Place) -> None:
    for headers in ((KEY,), ("Idempotency-Key: k-2",), ("x-other: 1",), ("x-other: 1",)):
        assert "idempotent-replayed" not in (await place.ask(0, floats(1), *headers)).headers
    assert len(place.core.requests) == 4


@pytest.mark.parametrize(("refusal", "is_replayed"), [(QueueFull("full"), False), (ModelFailed("no"), True)])
async def test_a_failure_is_kept_and_what_never_ran_may_run_again(
    place: Place, refusal: HeadraceError, is_replayed: bool
) -> None:
    place.core.refusal = refusal
    assert (await place.ask(0, floats(1))).status == refusal.http_status
    place.core.refusal = None
    again = await place.ask(1, floats(1))
    assert again.status == (refusal.http_status if is_replayed else 200)
    assert ("idempotent-replayed" in again.headers) == is_replayed


async def test_what_is_refused_leaves_its_key_to_the_corrected_request(place: Place) -> None:
    assert (await place.ask(0, b"{")).status == 400
    assert (await place.ask(1, floats(1))).status == 200


async def test_after_a_time_out_nothing_runs_before_the_lease_ends(place: Place) -> None:
    place.core.refusal = DeadlineExceeded("late")
    assert (await place.ask(0, floats(1))).status == 504
    place.core.refusal = None
    early = await place.ask(1, floats(1), KEY, "headrace-timeout-ms: 100")
    assert (early.status, early.headers["headrace-error"]) == (503, "unavailable")
    assert not place.core.requests


async def test_an_answer_too_large_to_keep_is_said_to_have_been_given(place: Place) -> None:
    body = floats(*range(2_000))
    assert (await place.ask(0, body)).status == 200
    again = await place.ask(1, body)
    assert again.status == 413
    assert "too large to be kept" in again.error
    assert len(place.core.requests) == 1


async def test_without_the_broker_a_request_with_a_key_is_refused_not_run(place: Place, transports: Transports) -> None:
    lost = asyncio.Event()
    place.transports[0].on_disconnect(lost.set)
    await transports.take_away()
    await lost.wait()
    refused = await place.ask(0, floats(1))
    assert (refused.status, refused.headers["headrace-error"]) == (503, "broker-away")
    assert not place.core.requests
    assert (await place.ask(0, floats(1), "x-other: 1")).status == 200
    await transports.bring_back()


async def test_of_many_gateways_one_takes_an_attempt_and_another_follows_when_its_lease_ends(
    transports: Transports,
) -> None:
    keys = [Keys(await transports.make(), MAX_ANSWER_BYTES) for _ in range(3)]
    took: list[int] = []

    async def take(n: int) -> None:
        if isinstance(await keys[n % 3].take("t", b"f", 10.0), Taken):
            took.append(n)

    first = await keys[0].take("t", b"f", 0.0)  # its gateway dies now
    assert isinstance(first, Taken)
    waiting = [asyncio.ensure_future(take(n)) for n in range(9)]
    await until(lambda: len(took) == 1)
    await keys[took[0] % 3].settle(Taken("t", 1, b"f"), "", 200, {}, b"answer")
    await asyncio.gather(*waiting)
    assert len(took) == 1
    again = await keys[2].take("t", b"f", 1.0)
    assert again == End(b"f", 200, {}, b"answer")
