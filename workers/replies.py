"""Results to messages: what finished together for one gateway leaves as one ReplyMessage, then its deliveries settle.

    settle(item) -> Outbox.add(Run) -> flush, at the end of the loop's tick -> publish -> InHand.leave -> ack

Nothing is published while the broker is away: results wait, within their deadline, for the reconnect. They are bounded
by the lanes' row windows, because rows in the outbox are still in hand. What the broker may have missed when the
connection broke is sent again (unconfirmed.py). A reply over the broker's limit is split; a
single result over it travels by reference. Runs no model and reads no clock of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from contract.envelope import pack
from contract.errors import Cancelled, DeadlineExceeded, HeadraceError, TooLarge, Unavailable
from contract.messages import BlobRef, Layout, ParameterValue, ReplyMessage, ResultHead
from contract.streams import BrokerLimits
from contract.text import NUM_TOKENS, NUM_TRUNCATED
from transport.base import Disconnected, PayloadOverLimit, StreamFull, Transport, TransportError
from workers.inhand import InHand
from workers.items import Answer, Buffer, Outcome, WorkItem
from workers.unconfirmed import Unconfirmed

BLOB_TIMEOUT_S: Final = 30.0
MAX_TRIES_FULL: Final = 10
"""While the broker's blob memory is full of others' payloads, which go as soon as they are read."""
FULL_PAUSE_S: Final = 0.2
"""At most, between two of those tries."""
HEAD_BYTES: Final = 64
"""A result's share of the header, roughly: the first guess at where to split."""
MAX_ERROR_CHARS: Final = 8_192
"""A model may raise a novel; callers get its beginning."""

log = structlog.get_logger()

Destination = tuple[str, str, str]
"""(reply inbox, model, version)"""


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive requests of one message that ended alike: one head each, their bytes behind one another."""

    hand: InHand
    rows: int
    deadline_s: float
    heads: list[ResultHead]
    layout: Layout | None = None
    parts: Sequence[Buffer] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all results."""
        return sum([p.nbytes if isinstance(p, memoryview) else len(p) for p in self.parts])


def run_of(item: WorkItem, outcome: Outcome, hand: InHand) -> Run:
    """The end of one item as it will be told."""
    request = item.key[1]
    if isinstance(outcome, HeadraceError):
        head = ResultHead(id=request, code=outcome.code, message=outcome.message[:MAX_ERROR_CHARS])
        return Run(hand, item.rows, item.deadline_s, [head])
    head = ResultHead(
        id=request,
        sizes=_sizes(outcome.layout, outcome.data),
        queue_us=outcome.queue_us,
        compute_us=outcome.compute_us,
        parameters=_parameters(item, outcome) if item.num_tokens or outcome.parameters else {},
        batch_rows=outcome.batch_rows,
    )
    return Run(hand, item.rows, item.deadline_s, [head], outcome.layout, outcome.data)


def _parameters(item: WorkItem, answer: Answer) -> dict[str, ParameterValue]:
    found = dict(answer.parameters)
    if item.num_tokens:
        found[NUM_TOKENS] = item.num_tokens
    if item.num_truncated:
        found[NUM_TRUNCATED] = item.num_truncated
    return found


def is_unread(outcome: Outcome) -> bool:
    """Whether nobody waits for it: the caller left, or the gateway has answered 504 by its own clock."""
    return isinstance(outcome, Cancelled | DeadlineExceeded)


def pack_runs(worker: str, model: str, version: str, runs: Sequence[Run]) -> bytes:
    """One ReplyMessage of all `runs`."""
    if len(runs) == 1:
        (run,) = runs
        if run.layout is not None:
            for head in run.heads:
                head.layout = 0
        return pack(ReplyMessage(worker, model, version, [run.layout] if run.layout else [], run.heads), run.parts)
    layouts: dict[Layout, int] = {}
    heads: list[ResultHead] = []
    parts: list[Buffer] = []
    for run in runs:
        index = -1 if run.layout is None else layouts.setdefault(run.layout, len(layouts))
        for head in run.heads:
            head.layout = index
        heads.extend(run.heads)
        parts.extend(run.parts)
    return pack(ReplyMessage(worker, model, version, list(layouts), heads), parts)


def halves(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """`runs` in two parts, neither empty; needs at least two results."""
    if len(runs) > 1:
        middle = len(runs) // 2
        return list(runs[:middle]), list(runs[middle:])
    (run,) = runs
    middle, total = len(run.heads) // 2, len(run.heads)
    body = memoryview(b"".join(run.parts))
    at, rows = run.num_bytes * middle // total, run.rows * middle // total
    first = Run(run.hand, rows, run.deadline_s, run.heads[:middle], run.layout, [body[:at]])
    return [first], [Run(run.hand, run.rows - rows, run.deadline_s, run.heads[middle:], run.layout, [body[at:]])]


class Outbox:
    """Results on their way out of one worker."""

    def __init__(
        self,
        transport: Transport,
        worker: str,
        now_s: Callable[[], float],
        max_blob_bytes: int = BrokerLimits().blob_max_bytes,
    ) -> None:
        self._transport = transport
        self._max_blob_bytes = max_blob_bytes
        self._worker = worker
        self._now_s = now_s
        self._runs: dict[Destination, list[Run]] = {}
        self._unread: list[Run] = []
        self._is_scheduled = False
        self._uploads: set[asyncio.Task[None]] = set()
        self.num_late = 0
        """Results that were dropped because their deadline passed while the broker was away."""
        self.unconfirmed = Unconfirmed()
        """What presence confirms with each heartbeat that comes back."""
        transport.on_reconnect(self._came_back)

    def add(self, destination: Destination, run: Run) -> None:
        """Send it at the end of this tick."""
        self.put(destination, run)
        self._schedule()

    def put(self, destination: Destination, run: Run) -> None:
        """Send it with the next `flush`, which the caller makes in this tick."""
        waiting = self._runs.get(destination)
        if waiting is None:
            self._runs[destination] = [run]
        else:
            waiting.append(run)

    def drop(self, run: Run) -> None:
        """Nobody reads it: only its rows leave, at the end of this tick."""
        self._unread.append(run)
        self._schedule()

    def flush(self) -> None:
        """Send what waits, unless the broker is away."""
        self._is_scheduled = False
        unread, self._unread = self._unread, []
        for run in unread:
            run.hand.leave(run.rows, len(run.heads))
        if not self._transport.is_connected:
            return
        everything, self._runs = self._runs, {}
        now_s = self._now_s()
        for destination, runs in everything.items():
            wanted = [r for r in runs if self._is_wanted(r, now_s)]
            if wanted:
                self._send(destination, wanted)

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything is out, at most `timeout_s`."""
        self.flush()
        if self._uploads:
            await asyncio.wait(self._uploads, timeout=timeout_s)
            self.flush()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._transport.at_tick_end(self.flush)

    def _is_wanted(self, run: Run, now_s: float) -> bool:
        if run.hand.delivery.is_lost:
            run.hand.leave(run.rows, len(run.heads))
            return False
        if run.deadline_s <= now_s:
            self.num_late += len(run.heads)
            run.hand.leave(run.rows, len(run.heads))
            return False
        return True

    def _send(self, destination: Destination, runs: list[Run]) -> None:
        inbox, model, version = destination
        num_results = sum([len(r.heads) for r in runs])
        num_bytes = sum([r.num_bytes for r in runs]) + HEAD_BYTES * num_results
        if num_bytes <= self._transport.max_payload:
            payload = pack_runs(self._worker, model, version, runs)
            try:
                self._publish(inbox, payload)
            except Disconnected:
                self._runs.setdefault(destination, []).extend(runs)
                return
            except PayloadOverLimit:
                pass
            else:
                for run in runs:
                    run.hand.leave(run.rows, len(run.heads))
                return
        if num_results > 1:
            for half in halves(runs):
                self._send(destination, half)
            return
        upload = asyncio.get_running_loop().create_task(self._send_by_reference(destination, runs[0]))
        self._uploads.add(upload)
        upload.add_done_callback(self._uploads.discard)

    def _publish(self, inbox: str, payload: bytes) -> None:
        self._transport.publish(inbox, payload)
        self.unconfirmed.put((inbox, payload))

    def _came_back(self) -> None:
        missed = self.unconfirmed.take()
        log.info("replies-sent-again", num_messages=len(missed))
        for reply in missed:
            try:
                self._publish(*reply)
            except TransportError:
                self.unconfirmed.put(reply)
        self.flush()

    async def _send_by_reference(self, destination: Destination, run: Run) -> None:
        """A single result over the broker's limit: its bytes go first, then a reply that names them."""
        (head,) = run.heads
        try:
            async with asyncio.timeout(BLOB_TIMEOUT_S):
                head.blob = await self._store(run)
            sent = Run(run.hand, run.rows, run.deadline_s, [head], run.layout)
        except Disconnected:
            sent = run
        except (TransportError, TimeoutError) as e:
            log.warning("reply-by-reference-failed", payload_bytes=run.num_bytes, error=str(e))
            error = self._not_stored(run.num_bytes, e)
            failed = ResultHead(id=head.id, code=error.code, message=error.message)
            sent = Run(run.hand, run.rows, run.deadline_s, [failed])
        self.add(destination, sent)

    async def _store(self, run: Run) -> BlobRef:
        num_full = 0
        while True:  # ends by the count
            try:
                return await self._transport.put_blob(self._worker, list(run.parts))
            except StreamFull:
                num_full += 1
                if num_full >= MAX_TRIES_FULL or run.num_bytes > self._max_blob_bytes:
                    raise
            # Apart from each other: several that are half stored would keep each other out for ever.
            await asyncio.sleep(random.uniform(0, FULL_PAUSE_S))  # noqa: S311 - no secret

    def _not_stored(self, num_bytes: int, error: Exception) -> HeadraceError:
        """Too large for ever, or only now?"""
        if num_bytes > self._max_blob_bytes:
            return TooLarge(f"the answer has {num_bytes} bytes, the broker's blob memory holds {self._max_blob_bytes}")
        limit = self._transport.max_payload
        return Unavailable(
            f"the answer has {num_bytes} bytes, the broker takes {limit} in one message, "
            f"and storing it by reference failed: {error or 'time-out'}"
        )


def _sizes(layout: Layout, data: Sequence[Buffer]) -> tuple[int, ...]:
    """Bytes per tensor where one is BYTES, else nothing: the shapes say it."""
    for tensor in layout.tensors:
        if tensor.datatype == "BYTES":
            return tuple([d.nbytes if isinstance(d, memoryview) else len(d) for d in data])
    return ()
