"""Accepted requests that have not ended, and the one way to end each. No I/O, no timers: `sweep` is told the time.

First answer wins: whoever ends a request takes it out of the table, everybody later is counted and ignored. Deadlines
lie in buckets of 5 ms; one timer for all of them calls `sweep`.

Invariants: `done` is called exactly once per entry, its ticket released exactly once, under any order of answers,
duplicates, refusals, cancels and sweeps; a sweep never ends an entry early (tests/property/test_exactly_once.py).
"""

from __future__ import annotations

from collections.abc import Callable, ValuesView
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog

from contract.errors import Cancelled, DeadlineExceeded, HeadraceError
from contract.messages import BlobRef
from gateway.admission import Ticket
from gateway.core import Answer, Done, InferRequest, Outcome

if TYPE_CHECKING:
    from gateway.coalescer import LaneQueue
    from gateway.outbox import Message

BUCKETS_PER_S: Final = 200

log = structlog.get_logger("gateway.inflight")


class Entry:
    """One accepted request: what the doors hold as `Pending`."""

    __slots__ = (
        "admitted_s",
        "attempt",
        "blob",
        "body_bytes",
        "bucket",
        "done",
        "id",
        "is_open",
        "is_published",
        "is_uploading",
        "lane",
        "message",
        "request",
        "table",
        "ticket",
    )

    def __init__(
        self,
        table: Inflight,
        number: int,
        lane: LaneQueue,
        request: InferRequest,
        done: Done,
        ticket: Ticket,
        bucket: int,
        body_bytes: int,
        admitted_s: float,
    ) -> None:
        self.table = table
        self.id = number
        self.lane = lane
        self.request = request
        self.done = done
        self.ticket = ticket
        self.bucket = bucket
        self.body_bytes = body_bytes
        self.admitted_s = admitted_s
        self.attempt = 0
        self.is_open = True
        self.is_published = False
        """Whether a worker may ever have seen it."""
        self.is_uploading = False
        self.message: Message | None = None
        """The message it travels in now; None before its publish and while it waits for the broker."""
        self.blob: BlobRef | None = None

    def cancel(self) -> None:
        """See `Pending.cancel`."""
        self.table.end(self, Cancelled("the caller left"))


class Inflight:
    """The table of open entries."""

    def __init__(self, on_ended: Callable[[Entry, bool], None]) -> None:
        """`on_ended(entry, is_settled)` runs before the caller hears; it must not raise."""
        self._on_ended = on_ended
        self._open: dict[int, Entry] = {}
        self._ids = count(1)
        self._buckets: dict[int, dict[int, Entry]] = {}
        self._swept = 0
        """Every bucket up to this number was swept."""
        self.num_late_answers = 0
        self.num_answered = 0
        self._usage: dict[tuple[str, str, str], list[int]] = {}
        self.num_failed: dict[str, int] = {}
        """Requests that ended in an error, by its code."""

    def __len__(self) -> int:
        return len(self._open)

    def entries(self) -> ValuesView[Entry]:
        """Every open entry, in order of admission."""
        return self._open.values()

    def get(self, entry_id: int) -> Entry | None:
        """The open entry of this id; None counts as one late answer."""
        entry = self._open.get(entry_id)
        if entry is None:
            self.num_late_answers += 1
        return entry

    def add(
        self, lane: LaneQueue, request: InferRequest, done: Done, ticket: Ticket, *, body_bytes: int, now_s: float
    ) -> Entry:
        """Take an admitted request in."""
        if not self._open:
            self._swept = int(now_s * BUCKETS_PER_S)
        number = int(request.deadline_s * BUCKETS_PER_S) + 1
        if number <= self._swept:
            # Its bucket was swept already, a moment ago: the next sweep meets it.
            number = self._swept + 1
        entry_id = next(self._ids)
        entry = Entry(self, entry_id, lane, request, done, ticket, number, body_bytes, now_s)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
        bucket[entry_id] = self._open[entry_id] = entry
        lane.watch.opened(now_s)
        return entry

    def end(self, entry: Entry, outcome: Outcome, *, is_settled: bool = False) -> bool:
        """End it; False if it has ended before. `is_settled`: no worker has it (any more), so nobody is told."""
        if not entry.is_open:
            return False
        entry.is_open = False
        del self._open[entry.id]
        bucket = self._buckets[entry.bucket]
        del bucket[entry.id]
        if not bucket:
            del self._buckets[entry.bucket]
        entry.lane.watch.num_open -= 1
        entry.ticket.release()
        if isinstance(outcome, HeadraceError):
            self.num_failed[outcome.code] = self.num_failed.get(outcome.code, 0) + 1
        else:
            self.num_answered += 1
            self._count(entry, outcome)
        self._on_ended(entry, is_settled)
        try:
            entry.done(outcome)
        except Exception:
            log.exception("door-failed-to-answer", request_id=entry.request.request_id)
        return True

    def take_usage(self) -> dict[tuple[str, str, str], list[int]]:
        """What was answered since the last call, by tenant, key and model; the figures are those of gateway/usage."""
        usage, self._usage = self._usage, {}
        return usage

    def _count(self, entry: Entry, answer: Answer) -> None:
        request = entry.request
        principal = request.principal
        key = (principal.tenant, principal.key_id, answer.model)
        found = self._usage.get(key)
        if found is None:
            found = self._usage[key] = [0, 0, 0, 0]
        found[0] += 1
        found[1] += request.rows
        found[2] += entry.body_bytes
        # Its share of the micro-batch that it ran in.
        found[3] += answer.compute_us * request.rows // max(answer.batch_rows, request.rows, 1)

    def sweep(self, now_s: float) -> int:
        """End every entry whose deadline passed; returns how many."""
        now = int(now_s * BUCKETS_PER_S)
        if now - self._swept > len(self._buckets):
            due = sorted(number for number in self._buckets if number <= now)
        else:
            due = [number for number in range(self._swept + 1, now + 1) if number in self._buckets]
        self._swept = max(self._swept, now)
        num_expired = 0
        for number in due:
            # Callers may cancel others from `done`, which takes them out of the bucket under our hands.
            for entry in list(self._buckets.get(number, {}).values()):
                waited_ms = (now_s - entry.admitted_s) * 1000
                error = DeadlineExceeded(f"no answer within the deadline, {waited_ms:.0f} ms after admission")
                num_expired += self.end(entry, error)
        return num_expired
