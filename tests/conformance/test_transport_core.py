"""transport/base.py, core messages: the same promises from the in-process twin and from nats-server."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.transports import JumpingClock, Transports
from tests.support.waiting import Inbox, until
from transport.base import BrokerTimeout, Disconnected, NoResponders, PayloadOverLimit


async def test_a_message_reaches_every_subscriber_with_its_subject_and_payload(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got_a, got_b = Inbox(), Inbox()
    await a.subscribe("news.*", lambda s, r, p: got_a.append((s, r, p)))
    await b.subscribe("news.>", lambda s, r, p: got_b.append((s, r, p)))
    a.publish("news.x", b"1")
    await got_a.has(1)
    await got_b.has(1)
    assert got_a == got_b == [("news.x", "", b"1")]


async def test_subscribe_returns_when_the_broker_has_it(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    for n in range(20):
        got = Inbox()
        await a.subscribe(f"s.{n}", lambda s, r, p, got=got: got.append(p))
        b.publish(f"s.{n}", b"x")
        await got.has(1)


async def test_members_of_a_queue_share_the_messages(transports: Transports) -> None:
    a, b, c = await transports.make(), await transports.make(), await transports.make()
    got = Inbox()
    await a.subscribe("work", lambda s, r, p: got.append(("a", p)), queue="q")
    await b.subscribe("work", lambda s, r, p: got.append(("b", p)), queue="q")
    for n in range(100):
        c.publish("work", b"%d" % n)
    await got.has(100)
    assert sorted(int(p) for _, p in got) == list(range(100))


async def test_messages_of_one_publisher_arrive_in_order(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    await b.subscribe("n", lambda s, r, p: got.append(int(p)))
    for n in range(3000):
        a.publish("n", b"%d" % n)
    await got.has(3000)
    assert got == list(range(3000))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70_000, 300_000, 1024 * 1024])
async def test_a_payload_arrives_unchanged_up_to_the_limit(transports: Transports, size: int) -> None:
    a = await transports.make()
    got = Inbox()
    await a.subscribe("big", lambda s, r, p: got.append(p))
    payload = bytes(i % 251 for i in range(997)) * (size // 997 + 1)
    a.publish("big", payload[:size])
    await got.has(1)
    assert got[0] == payload[:size]


async def test_nothing_is_called_back_after_unsubscribing(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got, after = Inbox(), Inbox()
    subscription = await a.subscribe("x", lambda s, r, p: got.append(p))
    await a.subscribe("x", lambda s, r, p: after.append(p))
    b.publish("x", b"1")
    await got.has(1)
    b.publish("x", b"2")
    await subscription.unsubscribe()
    b.publish("x", b"3")
    await until(lambda: b"3" in after)
    assert got == [b"1"]


async def test_an_exception_in_a_callback_hurts_no_other_message(transports: Transports) -> None:
    a = await transports.make()
    got = Inbox()

    def callback(subject: str, reply: str, payload: bytes) -> None:
        if payload == b"bad":
            raise ValueError(payload)
        got.append(payload)

    await a.subscribe("x", callback)
    for payload in (b"1", b"bad", b"2"):
        a.publish("x", payload)
    await got.has(2)
    assert got == [b"1", b"2"]
    assert a.is_connected


async def test_a_request_gets_the_first_answer(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()

    def answer(subject: str, reply: str, payload: bytes) -> None:
        b.reply(reply, payload + b"!")
        b.reply(reply, b"too late")

    await b.subscribe("ask", answer)
    answers = await asyncio.gather(*(a.request("ask", b"%d" % n, 10) for n in range(50)))
    assert answers == [b"%d!" % n for n in range(50)]


async def test_a_request_to_nobody_fails_at_once(transports: Transports) -> None:
    a = await transports.make()
    started = time.monotonic()
    with pytest.raises(NoResponders):
        await a.request("nobody.home", b"", 10)
    assert time.monotonic() - started < 5


async def test_a_request_without_an_answer_times_out(transports: Transports) -> None:
    a = await transports.make()
    await a.subscribe("silent", lambda s, r, p: None)
    with pytest.raises(BrokerTimeout):
        await a.request("silent", b"", 0.05)


async def test_a_publish_can_name_where_answers_go(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    inbox = a.new_inbox("many")
    await a.subscribe(inbox, lambda s, r, p: got.append(p))
    for n in range(2):
        await b.subscribe("all", lambda s, r, p, n=n: b.reply(r, b"%d" % n))
    a.publish("all", b"", inbox)
    await got.has(2)
    assert sorted(got) == [b"0", b"1"]


async def test_inboxes_are_distinct_and_private_to_their_connection(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    inboxes = [t.new_inbox("r") for t in (a, a, b, b)]
    assert len(set(inboxes)) == 4
    assert all(i.startswith("_INBOX.") for i in inboxes)


async def test_a_payload_over_the_limit_is_refused_and_the_connection_unharmed(transports: Transports) -> None:
    a = await transports.make()
    got = Inbox()
    assert a.max_payload == transports.max_payload
    await a.subscribe("x", lambda s, r, p: got.append(p))
    too_large = bytes(a.max_payload + 1)
    for send in (a.publish, a.reply):
        with pytest.raises(PayloadOverLimit) as refused:
            send("x", too_large)
        assert (refused.value.payload_bytes, refused.value.max_bytes) == (a.max_payload + 1, a.max_payload)
    with pytest.raises(PayloadOverLimit):
        await a.request("x", too_large, 1)
    with pytest.raises(PayloadOverLimit):
        await a.put_message("x", too_large)
    with pytest.raises(PayloadOverLimit):
        a.publish_stored("x", too_large, got.append)
    a.publish("x", b"fits")
    await got.has(1)
    assert got == [b"fits"]
    assert a.num_reconnects == 0


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB b 0\r\n", "a\tb"])
async def test_a_subject_that_would_be_read_as_protocol_is_refused(transports: Transports, subject: str) -> None:
    a = await transports.make()
    with pytest.raises(ValueError, match="subject"):
        a.publish(subject, b"")
    with pytest.raises(ValueError, match="subject"):
        await a.subscribe(subject, lambda s, r, p: None)


async def test_the_clock_is_the_brokers(transports: Transports) -> None:
    clock = JumpingClock()
    a = await transports.make(clock)
    assert abs(a.clock.now_ms(clock()) - time.time() * 1000) < 1000


async def test_closing_takes_under_two_seconds_and_sends_what_waits(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    await b.subscribe("last", lambda s, r, p: got.append(p))
    a.publish("last", b"words")
    started = time.monotonic()
    await a.close()
    assert time.monotonic() - started < 2
    assert not a.is_connected
    await got.has(1)
    with pytest.raises(Disconnected):
        a.publish("last", b"more")


async def test_what_is_asked_for_the_tick_end_arrives_behind_what_was_published_in_the_tick(
    transports: Transports,
) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    await b.subscribe("n", lambda s, r, p: got.append(p))
    a.at_tick_end(lambda: a.publish("n", b"2"))
    a.publish("n", b"1")
    await got.has(2)
    assert got == [b"1", b"2"]


async def test_a_call_at_the_tick_end_runs_once_and_may_ask_for_the_next(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got, rounds = Inbox(), iter(range(50))
    await b.subscribe("n", lambda s, r, p: got.append(int(p)))

    def again() -> None:
        n = next(rounds, None)
        if n is not None:
            a.publish("n", b"%d" % n)
            a.at_tick_end(again)

    a.at_tick_end(again)
    await got.has(50)
    assert got == list(range(50))


async def test_calls_at_the_tick_end_follow_the_callbacks_of_a_read_and_one_that_raises_stops_no_other(
    transports: Transports,
) -> None:
    a, b = await transports.make(), await transports.make()
    got, heard = Inbox(), Inbox()
    await a.subscribe("answers", lambda s, r, p: heard.append(p))

    def fail() -> None:
        raise ValueError("not one of ours")

    def on_question(subject: str, reply: str, payload: bytes) -> None:
        got.append(payload)
        b.at_tick_end(fail)
        b.at_tick_end(lambda: b.publish("answers", payload))

    await b.subscribe("questions", on_question)
    for n in range(20):
        a.publish("questions", b"%d" % n)
    await heard.has(20)
    assert heard == got == [b"%d" % n for n in range(20)]
    b.publish("answers", b"alive")
    await heard.has(21)
