"""What nats-server really does with publishes: full, missing and lost streams are never silent.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
import pytest

from contract.streams import BrokerLimits, blob_stream, lane_consumer, online_stream
from contract.subjects import LaneAddress
from tests.broker.conftest import Make
from tests.support.broker import Broker
from tests.support.waiting import Inbox, until
from transport.base import Disconnected, Stored, StreamFull, StreamGone, TransportError
from transport.client import FastClient
from transport.nats_transport import NatsTransport

LANE = LaneAddress("g", "m", "any", "norm")
ONLINE = online_stream("g", BrokerLimits(online_max_bytes=64 * 1024 * 1024))


async def test_the_stream_bounds_all_gateways_exactly_and_says_so(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(msgspec.structs.replace(ONLINE, max_msgs=50))
    got = Inbox()
    for _ in range(40):
        a.publish_stored(LANE.subject, b"x", got.append)
        b.publish_stored(LANE.subject, b"x", got.append)
    await got.has(80)
    stored = [o for o in got if isinstance(o, Stored)]
    assert sorted(o.sequence for o in stored) == list(range(1, 51))
    assert sum(isinstance(o, StreamFull) for o in got) == 30

    a.delete_message(LANE.stream, stored[0].sequence)
    got.clear()
    async with asyncio.timeout(15):
        while not any(isinstance(o, Stored) for o in got):  # deleting by sequence makes room for one
            count = len(got)
            a.publish_stored(LANE.subject, b"x", got.append)
            await got.has(count + 1)
    assert got[-1] == Stored(51)


async def test_a_missing_stream_is_told_at_once(make: Make) -> None:
    a = await make()
    got = Inbox()
    started_s = time.monotonic()
    a.publish_stored(LANE.subject, b"x", got.append)
    await got.has(1)
    assert isinstance(got[0], StreamGone)
    assert time.monotonic() - started_s < 2


async def test_what_was_refused_while_away_is_published_after_the_stream_is_ensured(broker: Broker, make: Make) -> None:
    """nats-py alone would have flushed its buffer into a stream that no longer existed: 0 of 5 stored."""
    a = await make()
    await a.ensure_stream(ONLINE)
    lost, got, held = Inbox(), Inbox(), []
    a.on_disconnect(lambda: lost.append(True))

    async def again() -> None:
        await a.ensure_stream(ONLINE)
        for payload in held:
            a.publish_stored(LANE.subject, payload, got.append)

    tasks: list[asyncio.Task[None]] = []
    a.on_reconnect(lambda: tasks.append(asyncio.ensure_future(again())))
    broker.kill()
    await lost.has(1)
    for n in range(5):
        with pytest.raises(Disconnected):
            a.publish_stored(LANE.subject, b"%d" % n, got.append)
        held.append(b"%d" % n)
    await broker.start()
    await got.has(5)
    assert got == [Stored(n) for n in range(1, 6)]
    await asyncio.gather(*tasks)


class CountingSocket:
    """An asyncio transport that counts its writes."""

    def __init__(self, real: asyncio.Transport) -> None:
        self._real = real
        self.num_writes = 0

    def write(self, data: bytes) -> None:
        self.num_writes += 1
        self._real.write(data)

    def writelines(self, data: list[bytes]) -> None:
        self.num_writes += 1
        self._real.writelines(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def count_writes(transport: NatsTransport) -> CountingSocket:
    assert isinstance(transport.link, FastClient)
    wire = transport.link._socket.wire
    assert wire is not None
    assert wire.transport is not None
    counting = CountingSocket(wire.transport)
    wire.transport = counting  # type: ignore[assignment]
    return counting


async def test_all_that_one_tick_publishes_leaves_in_one_write(make: Make) -> None:
    a = await make()
    await a.ensure_stream(ONLINE)
    counting = count_writes(a)
    got = Inbox()
    for _ in range(200):
        a.publish_stored(LANE.subject, b"x" * 300, got.append)
        a.publish("elsewhere", b"y")
    await got.has(200)
    assert counting.num_writes <= 2, "one for ours, one for a clock or heartbeat question at most"


async def test_reply_ack_and_refill_of_a_tick_leave_in_one_write(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(ONLINE)
    answers = Inbox()
    inbox = a.new_inbox("r")
    await a.subscribe(inbox, lambda s, r, p: answers.append(p))
    loop = asyncio.get_running_loop()

    def take(delivery: Any) -> int:
        def run() -> None:
            b.publish(inbox, b"answer")
            delivery.ack()
            lane.finished(1)

        loop.call_soon(run)
        return 1

    lane = await b.open_lane(LANE, b.row_window(2), take)
    await a.put_message(LANE.subject, b"warm")
    await answers.has(1)
    counting = count_writes(b)
    for n in range(2, 12):
        await a.put_message(LANE.subject, b"x")
        await answers.has(n)
    assert counting.num_writes <= 10 + 3, "ten messages; renewals and signs of the half second may come between"


async def test_sixty_four_mebibytes_by_reference_take_a_moment_each_way(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(blob_stream(BrokerLimits(blob_max_bytes=256 * 1024 * 1024)))
    payload = os.urandom(1024 * 1024) * 64
    started_s = time.monotonic()
    ref = await a.put_blob("gw", [payload])
    assert await b.get_blob(ref) == payload
    assert time.monotonic() - started_s < 10  # measured: 0.2 to 0.6 s each way on two busy cores


async def test_a_broker_whose_memory_is_reserved_says_what_does_not_fit(make: Make) -> None:
    a = await make()
    await a.ensure_stream(msgspec.structs.replace(ONLINE, max_bytes=900 * 1024 * 1024))
    with pytest.raises(TransportError, match=r"HR_ON_other.*10028|HR_ON_other.*insufficient|HR_ON_other.*exceeded"):
        await a.ensure_stream(online_stream("other", BrokerLimits(online_max_bytes=900 * 1024 * 1024)))


async def test_a_stream_that_takes_all_the_room_can_be_ensured_by_the_next_process(make: Make) -> None:
    spec = msgspec.structs.replace(ONLINE, max_bytes=900 * 1024 * 1024)
    for transport in (await make(), await make()):
        await transport.ensure_stream(spec)


async def test_acks_of_an_earlier_consumer_remove_nothing(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(ONLINE)
    got = Inbox()
    await b.open_lane(LANE, b.row_window(8), lambda d: got.append(d) or 1)
    await a.put_message(LANE.subject, b"1")
    await got.has(1)
    lost = Inbox()
    b.on_lost(lost.append)
    await a.delete_consumer(LANE.stream, LANE.consumer)
    await got.has(2)
    assert lost == [[got[0]]]
    got[0].ack()
    await asyncio.sleep(0)
    await until(lambda: got[1].is_settled is False)
    assert await a.lane_backlog(lane_consumer(LANE)) == (0, 1)
    got[1].ack()
