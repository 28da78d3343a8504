"""transport/base.py, losing the broker: the same promises from the in-process twin and from nats-server."""

from __future__ import annotations

import asyncio

import pytest

from contract.streams import BrokerLimits, online_stream
from contract.subjects import LaneAddress
from tests.support.transports import Transports
from tests.support.waiting import Inbox, until
from transport.base import BrokerTimeout, Stored, StreamGone

LANE = LaneAddress("g", "m", "any", "norm")
ONLINE = online_stream("g", BrokerLimits(online_max_bytes=16 * 1024 * 1024))


async def test_subscriptions_stand_when_the_reconnect_callback_runs(transports: Transports) -> None:
    a = await transports.make()
    got, back = Inbox(), Inbox()
    await a.subscribe("echo", lambda s, r, p: got.append(p))

    def on_back() -> None:
        back.append(a.is_connected)
        a.publish("echo", b"after")

    a.on_reconnect(on_back)
    await transports.restart()
    await got.has(1)
    assert back == [True]
    assert got == [b"after"]
    assert a.num_reconnects == 1


async def test_every_reconnect_counts(transports: Transports) -> None:
    a = await transports.make()
    lost = Inbox()
    a.on_disconnect(lambda: lost.append(True))
    for n in range(1, 4):
        await transports.restart()
        await until(lambda n=n: a.num_reconnects == n and a.is_connected)
        assert len(lost) == n


async def test_a_stream_in_memory_is_gone_after_a_restart_and_can_be_ensured_again(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(ONLINE)
    await a.put_message(LANE.subject, b"x")
    back = asyncio.Event()
    a.on_reconnect(back.set)
    await transports.restart()
    async with asyncio.timeout(20):
        await back.wait()
    with pytest.raises(StreamGone):
        await a.put_message(LANE.subject, b"x")
    await a.ensure_stream(ONLINE)
    got = Inbox()
    a.publish_stored(LANE.subject, b"x", got.append)
    await got.has(1)
    assert isinstance(got[0], Stored)


async def test_a_request_across_a_lost_connection_ends_by_its_time_out(transports: Transports) -> None:
    a = await transports.make()
    await a.subscribe("silent", lambda s, r, p: None)
    lost = Inbox()
    a.on_disconnect(lambda: lost.append(True))
    request = asyncio.ensure_future(a.request("silent", b"", 3.0))
    await asyncio.sleep(0)
    await transports.restart()
    await lost.has(1)
    assert not request.done()
    with pytest.raises(BrokerTimeout):
        await request


async def test_what_waits_for_a_round_trip_fails_with_the_connection(transports: Transports) -> None:
    a = await transports.make()
    await transports.take_away()
    with pytest.raises(Exception, match=r"not connected|was lost"):
        await a.subscribe("x", lambda s, r, p: None)
    await transports.bring_back()
    await until(lambda: a.is_connected)
    got = Inbox()
    await a.subscribe("x", lambda s, r, p: got.append(p))
    a.publish("x", b"1")
    await got.has(1)
    assert got == [b"1"], "the failed subscription must not have stayed"
