"""`done` is called exactly once per request, whatever the broker, the workers, the callers and the clock do.

A state machine over the real table, coalescer, outbox and recovery, with a broker that says anything at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contract.deadline import BrokerClock
from contract.envelope import unpack
from contract.errors import BrokerAway, DeadlineExceeded, HeadraceError, ModelFailed
from contract.messages import RequestMessage
from contract.principal import DEFAULT_PRINCIPAL
from contract.streams import BrokerLimits
from gateway.admission import Admission, Ticket
from gateway.coalescer import Coalescer
from gateway.core import Answer, Outcome, Target
from gateway.inflight import Entry, Inflight
from gateway.outbox import Outbox
from gateway.recovery import Recovery
from tests.support.gateway_kit import card, infer_request
from transport.base import (
    BrokerTimeout,
    Disconnected,
    OnStored,
    PublishOutcome,
    Stored,
    StreamFull,
    StreamGone,
    Transport,
)

TARGETS = [
    Target("default", group, card(model, may_retry=may_retry), "")
    for group in ("default", "other")
    for model, may_retry in (("tiny", True), ("once", False))
]
GROUPS = ("default", "other")


class Broker:
    """Keeps what was published until a rule says what became of it."""

    def __init__(self) -> None:
        self.clock = BrokerClock(0.0)
        self.max_payload = 1024 * 1024
        self.is_connected = True
        self.unanswered: list[tuple[bytes, OnStored]] = []
        self.stored: dict[int, bytes] = {}
        self.last_sequence = 0
        self.deletes: list[int] = []
        """Asked for and not done yet: the stream API takes its time, publishes overtake it."""

    def publish_stored(self, _subject: str, payload: bytes, on_stored: OnStored) -> None:
        if not self.is_connected:
            raise Disconnected("away")
        self.unanswered.append((payload, on_stored))

    def delete_message(self, _stream: str, sequence: int) -> None:
        if not self.is_connected:
            raise Disconnected("away")
        self.deletes.append(sequence)


class Quiet:
    """Stands in for what only tells others: cancels and payloads."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args: None


class Gateway(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.broker = Broker()
        self.admission = Admission(50, 1_000_000)
        self.coalescer = Coalescer()
        self.inflight = Inflight(lambda entry, is_settled: self.outbox.forget(entry, is_settled=is_settled))
        self.gone: list[str] = []
        self.outbox = Outbox(
            cast("Transport", self.broker),
            gateway="g",
            reply="_INBOX.g",
            inflight=self.inflight,
            upload=lambda _entry: None,
            resend=self.queue,
            on_stream_gone=self.stream_gone,
        )
        self.recovery = Recovery(
            cast("Transport", self.broker),
            groups=GROUPS,
            limits=BrokerLimits(),
            inflight=self.inflight,
            outbox=self.outbox,
            payloads=cast("Any", Quiet()),
            cancels=cast("Any", Quiet()),
            resend=self.queue,
            withdraw=self.coalescer.withdraw,
            monotonic=lambda: self.now_s,
        )
        self.outbox.open_groups.update(GROUPS)
        self.entries: list[Entry] = []
        self.heard: dict[int, list[Outcome]] = {}
        self.answered: set[int] = set()
        self.published_once: dict[int, int] = {}

    def queue(self, entry: Entry) -> None:
        self.coalescer.add(entry)

    def stream_gone(self, group: str) -> None:
        self.outbox.open_groups.discard(group)
        self.gone.append(group)

    # ------------------------------------------------------------------ callers

    @rule(target_number=st.integers(0, 3), timeout_s=st.sampled_from([0.004, 0.1, 5.0, 600.0]))
    def submit(self, target_number: int, timeout_s: float) -> None:
        target = TARGETS[target_number]
        request = infer_request(deadline_s=self.now_s + timeout_s)
        ticket = self.admission.admit(DEFAULT_PRINCIPAL, 16, request.deadline_s, self.now_s)
        if not isinstance(ticket, Ticket):
            assert isinstance(ticket, HeadraceError)
            return
        outcomes: list[Outcome] = []
        lane = self.coalescer.lane(target, "norm")
        entry = self.inflight.add(lane, request, outcomes.append, ticket, body_bytes=16, now_s=self.now_s)
        self.entries.append(entry)
        self.heard[entry.id] = outcomes
        self.coalescer.add(entry)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.entries)).cancel()

    @rule(seconds=st.sampled_from([0.003, 0.05, 3.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.inflight.sweep(self.now_s)
        for entry in self.inflight.entries():
            assert entry.request.deadline_s > self.now_s - 0.0051

    @rule()
    def end_of_tick(self) -> None:
        for lane, entries in self.coalescer.take():
            before = {entry.id: entry.attempt for entry in entries}
            self.outbox.send(lane, entries)
            for entry in entries:
                if entry.message is not None and not lane.may_retry:
                    assert before[entry.id] == 0, "a model that must not run twice got a second copy"

    @rule()
    def a_good_tick(self) -> None:
        """What is queued goes out and is stored: the ordinary day, so that faults meet something."""
        self.end_of_tick()
        unanswered, self.broker.unanswered = self.broker.unanswered, []
        for payload, on_stored in unanswered:
            on_stored(self.store(payload))

    def store(self, payload: bytes) -> Stored:
        self.broker.last_sequence += 1
        self.broker.stored[self.broker.last_sequence] = payload
        return Stored(self.broker.last_sequence)

    # ------------------------------------------------------------------ the broker's word

    @precondition(lambda self: self.broker.unanswered)
    @rule(
        data=st.data(),
        word=st.sampled_from(["stored", "stored", "full", "gone", "silence"]),
    )
    def broker_speaks(self, data: st.DataObject, word: str) -> None:
        number = data.draw(st.integers(0, len(self.broker.unanswered) - 1))
        payload, on_stored = self.broker.unanswered.pop(number)
        outcome: PublishOutcome
        if word == "stored":
            outcome = self.store(payload)
        else:
            outcome = {"full": StreamFull("x"), "gone": StreamGone("x"), "silence": BrokerTimeout("x")}[word]
        on_stored(outcome)

    @precondition(lambda self: self.broker.deletes)
    @rule()
    def broker_deletes(self) -> None:
        deleted = self.broker.stored.pop(self.broker.deletes.pop(0), None)
        if deleted is not None:
            message, _ = unpack(RequestMessage, deleted)
            open_ids = {entry.id for entry in self.inflight.entries()}
            wanted = [head.id for head in message.requests if head.id in open_ids]
            assert not wanted, "a message that somebody waits for was deleted"

    @precondition(lambda self: self.gone)
    @rule()
    def stream_is_made_again(self) -> None:
        group = self.gone.pop()
        if group not in self.outbox.open_groups and self.broker.is_connected:
            for entry in self.recovery.reopen(group, is_new_life=False):
                if entry.is_open and entry.message is None:
                    self.queue(entry)

    @precondition(lambda self: self.broker.is_connected)
    @rule()
    def connection_is_lost(self) -> None:
        self.broker.is_connected = False
        self.broker.deletes.clear()
        self.outbox.open_groups.clear()

    @precondition(lambda self: not self.broker.is_connected)
    @rule(keeps_memory=st.booleans())
    def connection_is_back(self, keeps_memory: bool) -> None:
        self.broker.is_connected = True
        self.gone.clear()
        if not keeps_memory:
            self.broker.stored.clear()
            self.broker.last_sequence = 0
        for group in GROUPS:
            for entry in self.recovery.reopen(group, is_new_life=True):
                self.queue(entry)

    # ------------------------------------------------------------------ workers

    @precondition(lambda self: self.broker.stored)
    @rule(data=st.data(), error=st.booleans())
    def worker_answers(self, data: st.DataObject, error: bool) -> None:
        """Stored messages stay, so that a later call is a duplicate."""
        message, _ = unpack(RequestMessage, data.draw(st.sampled_from(list(self.broker.stored.values()))))
        for head in message.requests:
            entry = self.inflight.get(head.id)
            if entry is not None:
                outcome = ModelFailed("boom") if error else Answer("m", "1", (), [], {}, 0, 40, 4)
                assert self.inflight.end(entry, outcome, is_settled=True)
                self.answered.add(head.id)

    # ------------------------------------------------------------------ always

    @invariant()
    def nobody_hears_twice(self) -> None:
        for entry in self.entries:
            assert len(self.heard[entry.id]) == (0 if entry.is_open else 1)

    @invariant()
    def the_books_are_right(self) -> None:
        num_open = sum(entry.is_open for entry in self.entries)
        assert len(self.inflight) == num_open == self.admission.num_in_flight
        assert self.admission.held_bytes == 16 * num_open
        assert sum(watch.num_open for watch in self.coalescer.watches) == num_open

    @invariant()
    def nothing_open_is_forgotten(self) -> None:
        """Every open entry is on its way, waits for this tick's end, or waits for a closed gate."""
        waiting = {e.id for lane in self.coalescer._filled for e in lane.waiting}
        for entry in self.inflight.entries():
            gate_is_open = entry.lane.address.group in self.outbox.open_groups
            assert entry.message is not None or entry.id in waiting or not gate_is_open

    def teardown(self) -> None:
        self.inflight.sweep(self.now_s + 10_000)
        for entry in self.entries:
            assert len(self.heard[entry.id]) == 1
            if entry.id in self.answered:
                assert not isinstance(self.heard[entry.id][0], DeadlineExceeded)
        assert self.admission.num_in_flight == 0
        assert self.inflight._buckets == {}


TestExactlyOnce = Gateway.TestCase
TestExactlyOnce.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_message_of_an_earlier_life_of_the_stream_is_never_deleted_by_its_number() -> None:
    machine = Gateway()
    machine.submit(target_number=1, timeout_s=5.0)  # must not run twice
    machine.a_good_tick()
    machine.connection_is_lost()
    machine.connection_is_back(keeps_memory=False)
    assert isinstance(machine.heard[1][0], BrokerAway)
    machine.submit(target_number=0, timeout_s=5.0)
    machine.a_good_tick()
    while machine.broker.deletes:
        machine.broker_deletes()
    assert list(machine.broker.stored) == [1]


def test_an_answer_left_over_from_an_earlier_life_deletes_nothing_of_the_next() -> None:
    machine = Gateway()
    machine.submit(target_number=0, timeout_s=5.0)
    machine.a_good_tick()
    machine.connection_is_lost()
    machine.connection_is_back(keeps_memory=False)
    machine.submit(target_number=0, timeout_s=5.0)
    machine.a_good_tick()
    machine.entries[0].cancel()
    machine.entries[1].cancel()
    assert machine.broker.deletes == [1], "both travelled in the one message of the new life"
