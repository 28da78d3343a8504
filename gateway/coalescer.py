"""Gathers the requests of one loop tick per lane and cuts them into messages. Publishes nothing, keeps no time.

    submit, submit, submit → LaneQueue.waiting → (end of the tick) → cut → pack → one message per lane, or a few

No linger: what the tick brought goes out at its end. A message never mixes lanes or versions, carries at most the
lane's `max_rows` rows (one request for eager models) and stops growing at MESSAGE_BYTES.

Invariants: every request waiting is in exactly one piece, in order (tests/unit/test_coalescer.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from contract.envelope import pack
from contract.messages import Layout, RequestHead, RequestMessage
from contract.streams import MESSAGE_BYTES
from contract.subjects import ANY_VERSION, LANES, Lane, LaneAddress
from gateway.core import Target
from gateway.inflight import Entry

MAX_IDLE_LANES: Final = 4096
"""Lanes are kept for ever up to here; then those without open requests go."""


class ModelWatch:
    """How a model of a group answers: whether it is worth asking if anybody is there."""

    __slots__ = ("group", "model", "next_probe_s", "num_open", "silent_since_s")

    def __init__(self, group: str, model: str) -> None:
        self.group = group
        self.model = model
        self.num_open = 0
        self.silent_since_s = 0.0
        """Start of the present silence: the last answer, or the first request after all were answered."""
        self.next_probe_s = 0.0

    def opened(self, now_s: float) -> None:
        """One more request is open."""
        if not self.num_open:
            self.silent_since_s = now_s
        self.num_open += 1

    def answered(self, now_s: float) -> None:
        """Somebody is there."""
        self.silent_since_s = now_s
        self.next_probe_s = 0.0


class LaneQueue:
    """One lane, and the requests of this tick that go there."""

    __slots__ = ("address", "max_rows", "may_retry", "subject", "target", "version", "waiting", "watch")

    def __init__(self, address: LaneAddress, target: Target, watch: ModelWatch) -> None:
        self.address = address
        self.subject = address.subject
        self.version = target.version
        self.watch = watch
        self.waiting: list[Entry] = []
        self.adapt(target)

    def adapt(self, target: Target) -> None:
        """Follow the model's config, which may change under a running gateway."""
        self.target = target
        self.max_rows = target.card.config.max_message_rows
        self.may_retry = target.card.config.may_retry


class Coalescer:
    """Every lane in use, and which of them have something waiting."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str, str, Lane], LaneQueue] = {}
        self._by_target: dict[Lane, dict[int, LaneQueue]] = {lane: {} for lane in LANES}
        self._watches: dict[tuple[str, str], ModelWatch] = {}
        self._filled: list[LaneQueue] = []

    @property
    def watches(self) -> list[ModelWatch]:
        """One per model that was asked for."""
        return list(self._watches.values())

    def lane(self, target: Target, lane: Lane) -> LaneQueue:
        """The lane of a target."""
        # The router gives out one Target object per revision, so that its identity is the cheapest key there is.
        queue = self._by_target[lane].get(id(target))
        if queue is not None and queue.target is target:
            return queue
        return self._find(target, lane)

    def _find(self, target: Target, lane: Lane) -> LaneQueue:
        model = target.card.config.name
        key = (target.group, model, target.version, lane)
        queue = self._lanes.get(key)
        if queue is None:
            self._forget_idle()
            watch = self._watches.setdefault((target.group, model), ModelWatch(target.group, model))
            address = LaneAddress(target.group, model, target.version or ANY_VERSION, lane)
            queue = self._lanes[key] = LaneQueue(address, target, watch)
        self._by_target[lane].pop(id(queue.target), None)
        queue.adapt(target)
        self._by_target[lane][id(target)] = queue
        return queue

    def add(self, entry: Entry) -> bool:
        """Put it into its lane; True if it is the first of this tick, and a flush must be scheduled."""
        lane = entry.lane
        if not lane.waiting:
            self._filled.append(lane)
        lane.waiting.append(entry)
        return len(self._filled) == 1 and len(lane.waiting) == 1

    def take(self) -> list[tuple[LaneQueue, list[Entry]]]:
        """Everything that waits, by lane; what ended meanwhile is left out."""
        filled, self._filled = self._filled, []
        taken = []
        for lane in filled:
            entries, lane.waiting = lane.waiting, []
            taken.append((lane, [entry for entry in entries if entry.is_open]))
        return taken

    def withdraw(self, group: str) -> None:
        """Take back what waits for a group; the entries stay in the in-flight table."""
        for lane in self._filled:
            if lane.address.group == group:
                lane.waiting = []

    def _forget_idle(self) -> None:
        if len(self._lanes) < MAX_IDLE_LANES:
            return
        self._lanes = {key: lane for key, lane in self._lanes.items() if lane.watch.num_open}
        self._by_target = {lane: {} for lane in LANES}
        self._watches = {key: watch for key, watch in self._watches.items() if watch.num_open}


def cut(entries: list[Entry], max_rows: int) -> Iterator[list[Entry]]:
    """Pieces that travel together."""
    if len(entries) == 1:
        yield entries
        return
    piece: list[Entry] = []
    rows = size = 0
    for entry in entries:
        more_rows = max(1, entry.request.rows)
        if piece and (max_rows <= 1 or rows + more_rows > max_rows or size + entry.body_bytes > MESSAGE_BYTES):
            yield piece
            piece, rows, size = [], 0, 0
        piece.append(entry)
        rows += more_rows
        size += entry.body_bytes
    if piece:
        yield piece


def pack_requests(lane: LaneQueue, entries: list[Entry], gateway: str, reply: str, offset_s: float) -> bytes:
    """One message of `entries`; `offset_s` is broker time minus our monotonic clock."""
    layouts: list[Layout] = []
    numbers: dict[object, int] = {}
    heads: list[RequestHead] = []
    body: list[bytes | memoryview] = []
    last: object = None
    number = -1
    for entry in entries:
        request = entry.request
        tensors = request.heads
        if tensors is not last and tensors != last:
            number = numbers.setdefault(tensors, len(layouts))
            if number == len(layouts):
                layouts.append(Layout(tensors))
        last = tensors
        heads.append(
            RequestHead(
                entry.id,
                number,
                request.rows,
                int((request.deadline_s + offset_s) * 1000),
                int((entry.admitted_s + offset_s) * 1_000_000),
                request.sizes,
                request.priority,
                request.queue_timeout_us,
                request.request_id,
                request.principal.tenant,
                request.traceparent,
                request.parameters,
                request.outputs,
                entry.attempt,
                entry.blob,
                request.caller_id,
                request.classifications,
            )
        )
        if entry.blob is None:
            body.extend(request.data)
    return pack(RequestMessage(gateway, reply, lane.address.model, lane.version, layouts, heads), body)
