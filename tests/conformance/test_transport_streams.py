"""transport/base.py, streams: the same promises from the in-process twin and from nats-server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from contract.streams import BrokerLimits, StreamSpec, lane_consumer, online_stream, started_stream
from contract.subjects import STARTED_STREAM, LaneAddress, started_subject
from tests.support.transports import JumpingClock, Transports
from tests.support.waiting import Inbox
from transport.base import (
    BrokerTimeout,
    Disconnected,
    SpecMismatch,
    Stored,
    StreamFull,
    StreamGone,
    TransportError,
)

LANE = LaneAddress("g", "m", "any", "norm")
LIMITS = BrokerLimits(online_max_bytes=16 * 1024 * 1024)
ONLINE = online_stream("g", LIMITS)


async def test_a_stored_publish_says_its_sequence(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    got = Inbox()
    for _ in range(200):
        a.publish_stored(LANE.subject, b"x", got.append)
    await got.has(200)
    assert got == [Stored(n) for n in range(1, 201)]


async def test_a_full_stream_refuses_exactly_what_does_not_fit(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(msgspec.structs.replace(ONLINE, max_msgs=10))
    got = Inbox()
    for n in range(30):
        (a, b)[n % 2].publish_stored(LANE.subject, b"x", got.append)
    await got.has(30)
    assert sum(isinstance(o, Stored) for o in got) == 10
    assert sum(isinstance(o, StreamFull) for o in got) == 20


async def test_a_stream_is_full_by_bytes_too(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(msgspec.structs.replace(ONLINE, max_bytes=100_000))
    for _ in range(9):
        await a.put_message(LANE.subject, bytes(10_000))
    with pytest.raises(StreamFull):
        await a.put_message(LANE.subject, bytes(10_000))


async def test_a_publish_to_no_stream_is_told_so(transports: Transports) -> None:
    a = await transports.make()
    got = Inbox()
    a.publish_stored(LANE.subject, b"x", got.append)
    await got.has(1)
    assert isinstance(got[0], StreamGone)
    with pytest.raises(StreamGone):
        await a.put_message(LANE.subject, b"x")


async def test_a_publish_whose_broker_dies_is_answered_by_time_out_only_and_once(transports: Transports) -> None:
    clock = JumpingClock()
    a = await transports.make(clock)
    await a.ensure_stream(ONLINE)
    lost = Inbox()
    a.on_disconnect(lambda: lost.append(True))
    got = Inbox()
    await a.subscribe("elsewhere", lambda s, r, p: None)
    a.publish_stored("elsewhere", b"nobody acknowledges this", got.append)
    await transports.take_away()
    await lost.has(1)
    assert got == []
    clock.ahead_s += 6
    await got.has(1)
    assert [type(o) for o in got] == [BrokerTimeout]
    await transports.bring_back()


async def test_concurrent_creators_of_equal_things_all_succeed(transports: Transports) -> None:
    made = [await transports.make() for _ in range(4)]
    await asyncio.gather(*(t.ensure_stream(ONLINE) for t in made for _ in range(3)))
    await asyncio.gather(*(t.ensure_consumer(lane_consumer(LANE)) for t in made for _ in range(3)))
    assert await made[0].lane_backlog(lane_consumer(LANE)) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"), [("max_msgs", 7), ("max_age_s", 1.5), ("discard", "old"), ("subjects", ("q.0.g.m.>",))]
)
async def test_a_stream_that_differs_is_shown_not_changed(transports: Transports, field: str, value: object) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    other: StreamSpec = msgspec.structs.replace(ONLINE, **{field: value})
    with pytest.raises(SpecMismatch) as wrong:
        await a.ensure_stream(other)
    api_field = field.removesuffix("_s")
    assert str(other.to_api()[api_field]) in str(wrong.value)
    assert str(ONLINE.to_api()[api_field]) in str(wrong.value)
    await a.ensure_stream(ONLINE)


async def test_a_consumer_that_differs_is_shown_not_changed(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    spec = lane_consumer(LANE)
    await a.ensure_consumer(spec)
    with pytest.raises(SpecMismatch, match=r"9000000000.*2000000000"):
        await a.ensure_consumer(msgspec.structs.replace(spec, ack_wait_s=9.0))
    await a.ensure_consumer(spec)


async def test_a_consumer_of_no_stream_is_an_error(transports: Transports) -> None:
    a = await transports.make()
    with pytest.raises(StreamGone):
        await a.ensure_consumer(lane_consumer(LANE))


async def test_a_second_stream_on_the_same_subjects_is_an_error(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    with pytest.raises(TransportError, match="overlap"):
        await a.ensure_stream(msgspec.structs.replace(ONLINE, name="OTHER"))


async def test_deleting_a_consumer_twice_is_fine(transports: Transports) -> None:
    a = await transports.make()
    await a.delete_consumer(LANE.stream, LANE.consumer)
    await a.ensure_stream(ONLINE)
    await a.ensure_consumer(lane_consumer(LANE))
    for _ in range(2):
        await a.delete_consumer(LANE.stream, LANE.consumer)
    with pytest.raises(StreamGone):
        await a.lane_backlog(lane_consumer(LANE))


async def test_the_backlog_counts_what_waits_and_what_is_in_hands(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    await a.ensure_consumer(lane_consumer(LANE))
    for _ in range(5):
        await a.put_message(LANE.subject, b"x")
    assert await a.lane_backlog(lane_consumer(LANE)) == (5, 0)
    got = Inbox()

    def take(delivery: object) -> int:
        got.append(delivery)
        return 100

    await a.open_lane(LANE, a.row_window(2), take)
    await got.has(2)
    assert await a.lane_backlog(lane_consumer(LANE)) == (3, 2)
    for delivery in got:
        delivery.ack()


async def test_purging_deletes_what_the_filter_matches_in_hands_too(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    other = LANE._replace(model="other")
    held = Inbox()
    await a.open_lane(LANE, a.row_window(1), lambda d: held.append(d) or 1)
    for _ in range(4):
        await a.put_message(LANE.subject, b"x")
    await a.put_message(other.subject, b"stays")
    await held.has(1)
    assert await a.purge(LANE.stream, LANE.subject) == 4
    assert await a.purge(LANE.stream, LANE.subject) == 0
    assert await a.purge(LANE.stream, other.subject) == 1
    with pytest.raises(StreamGone):
        await a.purge("NOPE", ">")


async def test_a_deleted_message_is_never_delivered(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    first = await a.put_message(LANE.subject, b"first")
    await a.put_message(LANE.subject, b"second")
    a.delete_message(LANE.stream, first)
    a.delete_message(LANE.stream, first)
    a.delete_message("NOPE", 1)
    got = Inbox()

    def take(delivery: object) -> int:
        got.append(delivery)
        delivery.ack()  # type: ignore[attr-defined]
        return 0

    await a.open_lane(LANE, a.row_window(4), take)
    await got.has(1)
    assert [d.payload for d in got] == [b"second"]


async def test_the_last_message_of_a_subject_is_read_back(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(started_stream())
    subject = started_subject("g", "gw", 7)
    assert await b.last_message(STARTED_STREAM, subject) is None
    await a.put_message(subject, b"one")
    await a.put_message(subject, b"two")
    await a.put_message(started_subject("g", "gw", 8), b"other")
    assert await b.last_message(STARTED_STREAM, subject) == b"two"
    with pytest.raises(StreamGone):
        await b.last_message("NOPE", subject)


async def test_nothing_is_sent_while_there_is_no_connection(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    lost, got = Inbox(), Inbox()
    a.on_disconnect(lambda: lost.append(True))
    await transports.take_away()
    await lost.has(1)
    assert not a.is_connected
    with pytest.raises(Disconnected):
        a.publish("x", b"")
    with pytest.raises(Disconnected):
        a.publish_stored(LANE.subject, b"", got.append)
    with pytest.raises(Disconnected):
        a.delete_message(LANE.stream, 1)
    with pytest.raises(Disconnected):
        await a.put_message(LANE.subject, b"")
    with pytest.raises(Disconnected):
        await a.request("x", b"", 1)
    with pytest.raises(Disconnected):
        await a.subscribe("x", lambda s, r, p: None)
    assert got == []
    await transports.bring_back()
