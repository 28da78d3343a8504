"""What nats-server really does with lanes: the findings that the design of credits, pulls and fences rests on.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import asyncio
import itertools
import time

from contract.streams import ACK_WAIT_S, PULL_EXPIRES_S, PULL_MAX_BYTES, BrokerLimits, lane_consumer, online_stream
from contract.subjects import LaneAddress
from tests.broker.conftest import Make
from tests.support.broker import Broker
from tests.support.taker import Taker, rows_of
from tests.support.waiting import Inbox, until
from transport.base import Delivery, Lane
from transport.client import FastClient
from transport.nats_transport import NatsTransport

LANE = LaneAddress("g", "m", "any", "norm")
ONLINE = online_stream("g", BrokerLimits(online_max_bytes=256 * 1024 * 1024))


def freeze(transport: NatsTransport) -> None:
    """As SIGSTOP sees to it: the socket is not read, no sign is given."""
    assert isinstance(transport.link, FastClient)
    wire = transport.link._socket.wire
    assert wire is not None
    assert wire.transport is not None
    wire.transport.pause_reading()
    assert transport._timer is not None
    transport._timer.cancel()


def thaw(transport: NatsTransport) -> None:
    assert isinstance(transport.link, FastClient)
    wire = transport.link._socket.wire
    assert wire is not None
    assert wire.transport is not None
    wire.transport.resume_reading()
    transport._tick()


class TimedWorker:
    """Runs micro-batches of 8 rows, each `seconds` long, one after the other."""

    def __init__(self, transport: NatsTransport, seconds: float) -> None:
        self.take = Taker()
        self.window = transport.row_window(16)
        self.done = 0
        self._seconds = seconds
        self._transport = transport

    async def run(self) -> None:
        lane = await self._transport.open_lane(LANE, self.window, self.take)
        for at in itertools.count():
            await self.take.has(at + 1, within_s=60)
            delivery = self.take.got[at]
            await asyncio.sleep(self._seconds)
            delivery.ack()
            self.take.rows -= rows_of(delivery)
            self.done += 1
            lane.finished(rows_of(delivery))


async def warm_up(gateway: NatsTransport, lane: Lane, take: Taker, credits_wanted: int) -> None:
    """Light messages until the lane asks for many at a time."""
    async with asyncio.timeout(20):
        while lane.num_credits < credits_wanted:
            sent = len(take.got)
            await gateway.put_message(LANE.subject, b"1")
            await take.has(sent + 1)
            take.got[-1].ack()
            lane.finished(1)


async def test_a_slow_worker_never_holds_more_rows_than_its_window(
    make: Make,
) -> None:
    gateway, fast, slow = await make(), await make(), await make()
    await gateway.ensure_stream(ONLINE)
    workers = [TimedWorker(fast, 0.005), TimedWorker(slow, 0.05)]
    runs = [asyncio.ensure_future(w.run()) for w in workers]
    for _ in range(160):  # messages of 8 rows, ~850 rows/s
        gateway.publish_stored(LANE.subject, b"8", lambda outcome: None)
        await asyncio.sleep(8 / 850)
    await until(lambda: workers[0].done + workers[1].done == 160)
    assert workers[1].take.most_rows <= 16
    assert workers[0].take.most_rows <= 16
    assert workers[1].done < workers[0].done
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


async def test_a_frozen_worker_takes_each_message_once_at_most(
    make: Make,
) -> None:
    gateway, healthy, frozen = await make(), await make(), await make()
    await gateway.ensure_stream(ONLINE)
    stale, good, lost = Taker(), Taker(settles=True), Inbox()
    frozen.on_lost(lost.append)
    lane = await frozen.open_lane(LANE, frozen.row_window(12), stale)
    await warm_up(gateway, lane, stale, 6)
    warm = len(stale.got)

    freeze(frozen)
    started_s = time.monotonic()
    for n in range(6):
        await gateway.put_message(LANE.subject, b"1 %d" % n)
    await healthy.open_lane(LANE, healthy.row_window(12), good)
    await good.has(6)
    assert time.monotonic() - started_s < ACK_WAIT_S * 2
    assert {d.num_delivered for d in good.got} == {2}, "the frozen one got them all, once"

    thaw(frozen)
    await gateway.put_message(LANE.subject, b"1 last")
    await until(lambda: len(good.got) + len(stale.got) == warm + 6 + 1)
    assert len(stale.got) <= warm + 1, "what came into its socket while it was frozen is not handed out"


async def test_a_loop_that_hangs_longer_than_ack_wait_has_lost_what_it_held(
    make: Make,
) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(ONLINE)
    held = Taker()
    lost = Inbox()
    b.on_lost(lost.append)
    await b.open_lane(LANE, b.row_window(8), held)
    await a.put_message(LANE.subject, b"1")
    await held.has(1)
    time.sleep(ACK_WAIT_S + 0.3)  # noqa: ASYNC251 - blocking the loop is the fault under test
    assert held.got[0].is_lost
    assert lost == [[held.got[0]]]
    held.got[0].ack()
    await held.has(2)
    assert held.got[1].num_delivered == 2
    held.got[1].ack()


async def test_large_messages_in_open_credits_do_not_cut_a_reader_that_hangs(large_broker: Broker, make: Make) -> None:
    gateway, reader = await make(large_broker.settings), await make(large_broker.settings)
    await gateway.ensure_stream(ONLINE)
    take = Taker()
    lane = await reader.open_lane(LANE, reader.row_window(16), take)
    await warm_up(gateway, lane, take, 14)
    warm = len(take.got)

    freeze(reader)
    for _ in range(14):
        await gateway.put_message(LANE.subject, b"1 " + bytes(7 * 1024 * 1024))
    waiting, held = await gateway.lane_backlog(lane_consumer(LANE))
    assert held * 7 * 1024 * 1024 <= 2 * PULL_MAX_BYTES, "under the broker's default max_pending of 64 MiB"
    assert waiting == 14 - held
    thaw(reader)
    await take.has(warm + 1)
    assert reader.num_reconnects == 0


async def test_a_renewed_pull_leaves_no_gap_that_anybody_notices(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(ONLINE)
    seen: list[float] = []

    def take(delivery: Delivery) -> int:
        seen.append(time.monotonic() - float(delivery.payload))
        delivery.ack()
        return 0

    await b.open_lane(LANE, b.row_window(8), take)
    end_s = time.monotonic() + 2.5 * PULL_EXPIRES_S
    count = 0
    while time.monotonic() < end_s:
        a.publish_stored(LANE.subject, b"%f" % time.monotonic(), lambda outcome: None)
        count += 1
        await asyncio.sleep(0.004)
    await until(lambda: len(seen) == count)
    assert sorted(seen)[count // 2] < 0.05
    assert max(seen) < 0.5, "less than any expiry or heartbeat"


async def test_more_pulls_than_the_consumer_takes_are_no_storm(make: Make) -> None:
    a, b = await make(), await make()
    await a.ensure_stream(ONLINE)
    take = Taker(settles=True)
    lane = await b.open_lane(LANE, b.row_window(8), take)
    asked = Inbox()
    await a.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{LANE.stream}.{LANE.consumer}", lambda s, r, p: asked.append(p))
    lane._on_status(b"409", b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n")  # type: ignore[attr-defined]
    assert lane.num_credits == 0
    await until(lambda: lane.num_credits > 0)
    assert len(asked) <= 3
    await a.put_message(LANE.subject, b"1")
    await take.has(1)
