"""transport/base.py, lanes and deliveries: the same promises from the in-process twin and from nats-server."""

from __future__ import annotations

import asyncio
import time

import pytest

from contract.streams import ACK_WAIT_S, BrokerLimits, lane_consumer, online_stream
from contract.subjects import LaneAddress
from tests.support.taker import Taker
from tests.support.transports import JumpingClock, Transports
from tests.support.waiting import Inbox, until
from transport.base import Delivery
from transport.nats_transport import NatsTransport

LANE = LaneAddress("g", "m", "any", "norm")
HIGH = LANE._replace(lane="hi")
PINNED = LANE._replace(version="1")
SPEC = lane_consumer(LANE)
ONLINE = online_stream("g", BrokerLimits(online_max_bytes=64 * 1024 * 1024))


async def publish(transport: NatsTransport, *payloads: bytes, lane: LaneAddress = LANE) -> None:
    for payload in payloads:
        await transport.put_message(lane.subject, payload)


async def nothing_is_left(transport: NatsTransport) -> None:
    left = (1, 1)

    async def look() -> None:
        nonlocal left
        while left != (0, 0):
            left = await transport.lane_backlog(SPEC)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(15):
        await look()


async def test_a_delivery_says_what_it_is(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    lane = await b.open_lane(LANE, b.row_window(8), take)
    assert lane.address == LANE
    await publish(a, b"1 a", b"1 b")
    await take.has(2)
    first, second = take.got
    assert (first.payload, first.subject, first.sequence, first.num_delivered) == (b"1 a", LANE.subject, 1, 1)
    assert second.sequence == 2
    assert not first.is_settled
    assert not first.is_lost
    for delivery in take.got:
        delivery.ack()
        assert delivery.is_settled
    await nothing_is_left(a)


async def test_what_was_published_before_the_lane_opened_is_delivered(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    await publish(a, *(b"1" for _ in range(20)))
    take = Taker(settles=True)
    await a.open_lane(LANE, a.row_window(8), take)
    await take.has(20)
    await nothing_is_left(a)


async def test_settling_twice_is_an_error_of_the_caller(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1")
    await take.has(1)
    take.got[0].ack()
    for again in (take.got[0].ack, take.got[0].nak, take.got[0].term):
        with pytest.raises(AssertionError):
            again()


async def test_a_nak_brings_it_back_with_a_higher_count(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    lane = await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1")
    for n in range(1, 4):
        await take.has(n)
        assert take.got[-1].num_delivered == n
        assert take.got[-1].sequence == 1
        take.got[-1].nak()
        lane.finished(1)
    await take.has(4)
    take.got[-1].ack()
    await nothing_is_left(a)


async def test_a_delayed_nak_waits(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1")
    await take.has(1)
    naked_s = time.monotonic()
    take.got[0].nak(0.4)
    await take.has(2)
    assert time.monotonic() - naked_s > 0.35
    take.got[1].ack()


async def test_a_terminated_message_never_comes_back(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1 bad", b"1 good")
    await take.has(2)
    take.got[0].term()
    take.got[1].ack()
    await nothing_is_left(a)
    assert len(take.got) == 2


async def test_a_callback_that_raises_hands_the_message_back(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    got = Inbox()

    def take(delivery: Delivery) -> int:
        got.append(delivery.num_delivered)
        if delivery.num_delivered == 1:
            raise ValueError(delivery.payload)
        delivery.ack()
        return 0

    await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1")
    await got.has(2)
    assert got == [1, 2]
    await nothing_is_left(a)


async def test_everything_in_hand_stays_in_progress_far_beyond_ack_wait(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    held, other = Taker(), Taker(settles=True)
    await a.open_lane(LANE, a.row_window(8), held)
    await publish(a, b"2", b"2", b"2")
    await held.has(3)
    await b.open_lane(LANE, b.row_window(8), other)
    await asyncio.sleep(ACK_WAIT_S * 1.6)  # the behaviour under test is that nothing happens in this time
    assert other.got == []
    assert not any(d.is_lost for d in held.got)
    for delivery in held.got:
        delivery.ack()
    await nothing_is_left(a)


async def test_a_frozen_holder_loses_everything_in_hand_and_its_late_ack_does_nothing(transports: Transports) -> None:
    clock = JumpingClock()
    a, b = await transports.make(clock), await transports.make()
    await a.ensure_stream(ONLINE)
    held, other, lost = Taker(), Taker(), Inbox()
    a.on_lost(lost.append)
    await a.open_lane(LANE, a.row_window(8), held)
    await publish(a, b"1", b"1")
    await held.has(2)
    clock.ahead_s += ACK_WAIT_S + 0.5
    assert held.got[0].is_lost
    assert held.got[1].is_lost
    assert lost == [held.got]
    await b.open_lane(LANE, b.row_window(8), other)
    held.got[0].ack()
    held.got[1].nak()
    assert held.got[0].is_settled

    await until(lambda: {d.sequence for d in (*other.got, *held.got[2:])} == {1, 2})
    again = [*other.got, *held.got[2:]]
    assert [d.num_delivered for d in again] == [2, 2]
    for delivery in again:
        delivery.ack()
    await nothing_is_left(b)


async def test_a_holder_that_thawed_works_on(transports: Transports) -> None:
    clock = JumpingClock()
    a = await transports.make(clock)
    await a.ensure_stream(ONLINE)
    take = Taker(settles=True)
    await a.open_lane(LANE, a.row_window(8), take)
    clock.ahead_s += 60
    await publish(a, b"1")
    await take.has(1)
    await nothing_is_left(a)


async def test_rows_in_hand_stay_within_the_window(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    window = a.row_window(16)
    lane = await a.open_lane(LANE, window, take)
    for _ in range(40):
        a.publish_stored(LANE.subject, b"8", lambda outcome: None)
    for n in range(1, 41):
        await take.has(n)
        assert window.rows_in_hand == take.rows <= 16
        delivery = next(d for d in take.got if not d.is_settled)
        delivery.ack()
        take.rows -= 8
        lane.finished(8)
    assert window.rows_in_hand == 0
    assert take.most_rows <= 16
    await nothing_is_left(a)


async def test_lanes_of_one_window_share_it(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker()
    window = a.row_window(16)
    lanes = {
        LANE.subject: await a.open_lane(LANE, window, take),
        PINNED.subject: await a.open_lane(PINNED, window, take),
    }
    for n in range(40):
        a.publish_stored((LANE, PINNED)[n % 2].subject, b"8", lambda outcome: None)
    for n in range(1, 41):
        await take.has(n)
        delivery = next(d for d in take.got if not d.is_settled)
        delivery.ack()
        take.rows -= 8
        lanes[delivery.subject].finished(8)
    # Each lane keeps one message asked for, so that neither can starve the other.
    assert take.most_rows <= 16 + 2 * 8


async def test_a_lane_that_is_always_open_gets_its_messages_though_the_window_is_full(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    norm, high = Taker(), Taker()
    window = a.row_window(8)
    await a.open_lane(LANE, window, norm)
    lane = await a.open_lane(HIGH, window, high, is_always_open=True)
    await publish(a, *(b"8" for _ in range(4)))
    await norm.has(1)
    await publish(a, *(b"8 urgent" for _ in range(6)), lane=HIGH)
    for n in range(1, 7):
        await high.has(n)
        high.got[n - 1].ack()
        high.rows -= 8
        lane.finished(8)
    assert high.most_rows <= 16, "its own rows hold it back"


async def test_a_quiet_lane_asks_for_little(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    lane = await a.open_lane(LANE, a.row_window(64), Taker(settles=True))
    await until(lambda: lane.num_credits > 0)
    assert lane.num_credits <= 2


async def test_stopping_a_lane_makes_no_message_wait(transports: Transports) -> None:
    a, b, c = await transports.make(), await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    leaving, staying = Taker(settles=True), Taker(settles=True)
    lane = await b.open_lane(LANE, b.row_window(64), leaving)
    await c.open_lane(LANE, c.row_window(64), staying)
    sent: dict[bytes, float] = {}
    for n in range(400):
        payload = b"1 %d" % n
        sent[payload] = time.monotonic()
        a.publish_stored(LANE.subject, payload, lambda outcome: None)
        if n == 200:
            stopping = asyncio.ensure_future(lane.stop())
        if n % 10 == 0:
            await asyncio.sleep(0)
    await stopping
    num_left = len(leaving.got)
    await until(lambda: len(leaving.got) + len(staying.got) == 400, within_s=ACK_WAIT_S * 0.75)
    assert {*leaving.payloads, *staying.payloads} == set(sent)
    assert len(leaving.got) == num_left
    assert lane.num_credits == 0
    await nothing_is_left(a)


async def test_what_is_in_hand_when_a_lane_stops_is_still_the_holders(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    held, other = Taker(), Taker(settles=True)
    lane = await a.open_lane(LANE, a.row_window(8), held)
    await publish(a, b"1", b"1")
    await held.has(2)
    await lane.stop()
    await lane.stop()
    await b.open_lane(LANE, b.row_window(8), other)
    held.got[0].ack()
    held.got[1].nak()
    await other.has(1)
    assert other.got[0].num_delivered == 2
    await nothing_is_left(b)


async def test_a_lane_outlives_a_broker_that_forgot_its_streams(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take, lost = Taker(), Inbox()
    a.on_lost(lost.append)
    lane = await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1 old")
    await take.has(1)
    await transports.restart()
    await lost.has(1)
    assert lost == [[take.got[0]]], "an ack of the old life could hit a new message of the same number"
    take.got[0].ack()
    lane.finished(1)
    await until(lambda: a.is_connected)
    await publish(a, b"1 new")
    await take.has(2)
    assert take.got[1].payload == b"1 new"
    assert take.got[1].num_delivered == 1
    assert (await a.lane_backlog(SPEC))[1] == 1, "the late ack did nothing"
    take.got[1].ack()
    await nothing_is_left(a)


async def test_what_is_settled_while_the_connection_is_cut_counts_when_it_is_back(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    held, lost = Taker(), Inbox()
    b.on_lost(lost.append)
    await b.open_lane(LANE, b.row_window(8), held)
    await publish(a, b"1", b"1", b"1")
    await held.has(3)
    b.on_disconnect(held.got[0].ack)
    b.on_disconnect(held.got[1].nak)
    await transports.cut(b)
    await held.has(4)
    assert (held.got[3].sequence, held.got[3].num_delivered) == (2, 2)
    assert not held.got[2].is_lost
    held.got[2].ack()
    held.got[3].ack()
    await nothing_is_left(a)
    assert lost == []
    assert len(held.got) == 4


async def test_a_lane_outlives_its_consumer(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    take = Taker(settles=True)
    await a.open_lane(LANE, a.row_window(8), take)
    await publish(a, b"1")
    await take.has(1)
    await a.delete_consumer(LANE.stream, LANE.consumer)
    await publish(a, b"1 again")
    await take.has(2)
    await nothing_is_left(a)


async def test_two_workers_share_a_lane(transports: Transports) -> None:
    a, b, c = await transports.make(), await transports.make(), await transports.make()
    await a.ensure_stream(ONLINE)
    takes = [Taker(settles=True), Taker(settles=True)]
    for transport, take in zip((b, c), takes, strict=True):
        await transport.open_lane(LANE, transport.row_window(16), take)
    done = Inbox()
    for n in range(1000):
        a.publish_stored(LANE.subject, b"1 %d" % n, done.append)
    await until(lambda: len(takes[0].got) + len(takes[1].got) == 1000)
    await done.has(1000)
    assert len({*takes[0].payloads, *takes[1].payloads}) == 1000
    assert min(len(t.got) for t in takes) > 50
    await nothing_is_left(a)
