"""Results to messages: shared layouts, splitting, what waits and what leaves."""

import asyncio
from typing import Any

import pytest

from contract.deadline import BrokerClock
from contract.envelope import unpack
from contract.errors import Cancelled, DeadlineExceeded, InvalidInput, ModelFailed
from contract.messages import BlobRef, Layout, ReplyMessage, ResultHead, TensorHead
from tests.support.batcher_kit import make_item
from transport.base import BrokerTimeout, Disconnected, StreamFull
from workers.inhand import InHand
from workers.items import Answer
from workers.replies import MAX_ERROR_CHARS, Outbox, Run, halves, is_unread, pack_runs, run_of

LAYOUT = Layout((TensorHead("OUT", "FP32", (1, 2)),))
TO = ("inbox", "m", "1")


class FakeDelivery:
    payload = b""
    subject = "q"
    sequence = 1
    num_delivered = 1

    def __init__(self) -> None:
        self.is_lost = False
        self.is_settled = False
        self.ends: list[str] = []

    def ack(self) -> None:
        self.is_settled = True
        self.ends.append("ack")

    def nak(self, delay_s: float = 0.0) -> None:
        self.is_settled = True
        self.ends.append(f"nak {delay_s:g}")

    def term(self) -> None:
        self.is_settled = True
        self.ends.append("term")


class FakeLane:
    def __init__(self) -> None:
        self.rows = 0

    def finished(self, rows: int) -> None:
        self.rows += rows


class FakeTransport:
    max_payload = 1_000
    clock = BrokerClock(0.0)

    def __init__(self) -> None:
        self.is_connected = True
        self.sent: list[tuple[ReplyMessage, bytes]] = []
        self.blobs: list[int] = []
        self.blob_error: Exception | None = None
        self.publish_error: Exception | None = None

    def on_reconnect(self, callback: Any) -> None:
        self.back = callback

    def at_tick_end(self, call: Any) -> None:
        asyncio.get_running_loop().call_soon(call)

    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        if self.publish_error is not None:
            raise self.publish_error
        assert len(payload) <= self.max_payload
        message, body = unpack(ReplyMessage, payload)
        self.sent.append((message, bytes(body)))

    async def put_blob(self, owner: str, parts: list[Any]) -> BlobRef:
        if self.blob_error is not None:
            raise self.blob_error
        size = sum(len(p) for p in parts)
        self.blobs.append(size)
        return BlobRef(owner, "b", 1, size)


def in_hand(num_open: int = 1) -> InHand:
    return InHand(FakeDelivery(), FakeLane(), "inbox", num_open)


def a_run(number: int, hand: InHand, size: int = 8, deadline_s: float = 100.0) -> Run:
    return Run(hand, 1, deadline_s, [ResultHead(id=number)], LAYOUT, [bytes([number]) * size])


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def outbox(transport: FakeTransport) -> Outbox:
    return Outbox(transport, "w", lambda: 50.0)  # type: ignore[arg-type]


def test_results_that_look_alike_share_a_layout() -> None:
    hand = in_hand(3)
    failed = Run(hand, 1, 1.0, [ResultHead(id=3, code="x")])
    message, body = unpack(ReplyMessage, pack_runs("w", "m", "1", [a_run(1, hand), a_run(2, hand), failed]))
    assert message.layouts == [LAYOUT]
    assert [(r.id, r.layout) for r in message.results] == [(1, 0), (2, 0), (3, -1)]
    assert bytes(body) == bytes([1] * 8 + [2] * 8)


def test_a_run_of_many_results_is_halved_between_results() -> None:
    run = Run(in_hand(4), 4, 1.0, [ResultHead(id=i) for i in range(4)], LAYOUT, [bytes(range(32))])
    (first,), (second,) = halves([run])
    assert [h.id for h in first.heads] == [0, 1]
    assert bytes(first.parts[0]) + bytes(second.parts[0]) == bytes(range(32))
    assert (first.rows, second.rows) == (2, 2)


async def test_what_finished_in_one_tick_for_one_gateway_leaves_as_one_message(transport, outbox) -> None:
    hands = [in_hand(), in_hand()]
    for number, hand in enumerate(hands):
        outbox.add(TO, a_run(number, hand))
    outbox.add(("other", "m", "1"), a_run(9, in_hand()))
    await asyncio.sleep(0)
    assert [len(m.results) for m, _ in transport.sent] == [2, 1]
    assert [h.delivery.ends for h in hands] == [["ack"], ["ack"]]


async def test_a_message_is_acked_after_its_last_result(transport, outbox) -> None:
    hand = in_hand(2)
    outbox.add(TO, a_run(1, hand))
    outbox.flush()
    assert hand.delivery.ends == []
    outbox.add(TO, a_run(2, hand))
    outbox.flush()
    assert hand.delivery.ends == ["ack"]
    assert hand.lane.rows == 2


async def test_nothing_is_published_while_the_broker_is_away(transport, outbox) -> None:
    transport.is_connected = False
    hand, late = in_hand(), in_hand()
    outbox.add(TO, a_run(1, hand))
    outbox.add(TO, a_run(2, late, deadline_s=49.0))
    await asyncio.sleep(0)
    assert transport.sent == []
    assert hand.delivery.ends == []
    transport.is_connected = True
    transport.back()
    assert [r.id for r in transport.sent[0][0].results] == [1]
    assert outbox.num_late == 1
    assert (hand.delivery.ends, late.delivery.ends) == (["ack"], ["ack"])


async def test_a_connection_lost_between_check_and_publish_keeps_the_results(transport, outbox) -> None:
    hand = in_hand()
    transport.publish_error = Disconnected("gone")
    outbox.add(TO, a_run(1, hand))
    outbox.flush()
    assert hand.delivery.ends == []
    transport.publish_error = None
    outbox.flush()
    assert [r.id for r in transport.sent[0][0].results] == [1]


async def test_results_of_lost_deliveries_are_dropped_without_a_word(transport, outbox) -> None:
    hand = in_hand()
    hand.delivery.is_lost = True
    outbox.add(TO, a_run(1, hand))
    outbox.flush()
    assert transport.sent == []
    assert hand.delivery.ends == []


async def test_unread_results_only_leave(transport, outbox) -> None:
    hand = in_hand()
    outbox.drop(a_run(1, hand))
    await asyncio.sleep(0)
    assert transport.sent == []
    assert hand.delivery.ends == ["ack"]


async def test_a_reply_over_the_limit_is_split(transport, outbox) -> None:
    hands = [in_hand() for _ in range(4)]
    for number, hand in enumerate(hands):
        outbox.add(TO, a_run(number, hand, size=400))
    outbox.flush()
    assert sorted(r.id for m, _ in transport.sent for r in m.results) == [0, 1, 2, 3]
    assert len(transport.sent) >= 2
    assert all(h.delivery.ends == ["ack"] for h in hands)


async def test_a_single_result_over_the_limit_goes_by_reference(transport, outbox) -> None:
    hand = in_hand()
    outbox.add(TO, a_run(1, hand, size=5_000))
    outbox.flush()
    await outbox.drain(5)
    outbox.flush()
    ((message, body),) = transport.sent
    assert message.results[0].blob == BlobRef("w", "b", 1, 5_000)
    assert (body, message.results[0].layout, message.layouts) == (b"", 0, [LAYOUT])
    assert hand.delivery.ends == ["ack"]


async def test_a_result_that_cannot_be_stored_now_may_be_asked_for_again(transport, outbox) -> None:
    hand = in_hand()
    transport.blob_error = BrokerTimeout("no ack")
    outbox.add(TO, a_run(1, hand, size=5_000))
    outbox.flush()
    await outbox.drain(5)
    outbox.flush()
    ((message, _),) = transport.sent
    assert message.results[0].code == "unavailable"
    assert "5000" in message.results[0].message
    assert "1000" in message.results[0].message


async def test_a_result_larger_than_all_blob_memory_is_an_error_naming_both_sizes(transport) -> None:
    hand = in_hand()
    outbox = Outbox(transport, "w", lambda: 50.0, 4_000)
    transport.blob_error = StreamFull("full")
    outbox.add(TO, a_run(1, hand, size=5_000))
    outbox.flush()
    await outbox.drain(5)
    outbox.flush()
    ((message, _),) = transport.sent
    assert message.results[0].code == "too-large"
    assert "5000" in message.results[0].message
    assert "4000" in message.results[0].message


async def test_a_message_given_up_is_handed_back_not_acked() -> None:
    hand = in_hand(2)
    hand.leave(1)
    hand.return_after_s = 0.2
    hand.leave(1)
    assert hand.delivery.ends == ["nak 0.2"]


def test_leaving_twice_is_a_fault_of_ours() -> None:
    hand = in_hand()
    hand.leave(1)
    with pytest.raises(AssertionError):
        hand.leave(1)


def test_text_results_say_their_sizes_and_long_errors_are_cut() -> None:
    layout = Layout((TensorHead("OUT", "BYTES", (1,)),))
    item, hand = make_item(7), in_hand()
    run = run_of(item, Answer(layout, [b"\x02\0\0\0hi"], batch_rows=1), hand)
    assert run.heads[0].sizes == (6,)
    assert len(run_of(item, ModelFailed("x" * 100_000), hand).heads[0].message) == MAX_ERROR_CHARS


def test_nobody_reads_what_was_cancelled_or_expired() -> None:
    assert is_unread(Cancelled("left"))
    assert is_unread(DeadlineExceeded("late"))
    assert not is_unread(InvalidInput("no"))
