"""Forms micro-batches of one model from waiting requests, as Triton's dynamic batcher does. Pure; runs nothing.

    offer -> lines, one per priority rank and look -> take: MicroBatch
                                                   -> expire: deadline, queue time-out    -> cancel

The worker calls `take` while an instance is idle after every offer (an eager model, so that `max_queue_size` counts
only requests that must wait) or after every message, then `expire`, then sleeps until `next_event_s`. Time-outs are
alarms of their own, so they fire on time however long an execution takes.

Where it differs from Triton: other shapes don't close a micro-batch, they wait in a line of their own; ragged rows
are joined by what padding costs (cost.py) and only within their priority level; `retry: never` models run requests
one at a time, because a request that shares an execution may have to run twice; a queue time-out counts from the
admission at the gateway, and a request's own is taken even where the model sets none. With `preserve_ordering`
micro-batches start in order of arrival: each is the front of one line, up to the first request of another look.

Invariants: every accepted item leaves exactly once, by take, expire, cancel or hand_back; a taken item's deadline
has not passed; no micro-batch is over `max_batch_size` rows (tests/property/test_batcher.py).

Source: Triton `DynamicBatching` and `ModelQueuePolicy` in model_config.proto.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

from contract.errors import DeadlineExceeded, HeadraceError, InvalidInput, QueueFull, QueueTimeout
from contract.model_config import DynamicBatching, ModelConfig, QueuePolicy
from workers.cost import PaddingCost, padding_cost, pick_prefix, pick_run
from workers.items import Key, WorkItem
from workers.queueing import Alarms, Line, Look, look_at


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Requests for one execution: alike in inputs, wanted outputs and pinned version."""

    items: list[WorkItem]
    rows: int


class Batcher:
    """The waiting requests of one model. Times are seconds on one monotonic clock."""

    def __init__(self, config: ModelConfig, cost: PaddingCost | None = None) -> None:
        self._config = config
        self._batching = config.dynamic_batching or DynamicBatching()
        self._cost = cost or padding_cost(config)
        self._is_joining = config.dynamic_batching is not None and config.max_batch_size > 1 and config.may_retry
        self._has_timeouts = config.is_eager
        self._is_ordered = self._batching.preserve_ordering
        self._delay_s = self._batching.max_queue_delay_us / 1e6
        self._preferred = frozenset(self._batching.preferred_batch_size)
        self._wanted_rows = min(max(self._preferred, default=config.max_batch_size), config.max_batch_size)
        self._ragged = frozenset(spec.name for spec in config.inputs if spec.is_ragged)
        self._lines: dict[tuple[int, object], Line] = {}
        self._alarms = Alarms()
        self._num_at_level: dict[int, int] = {}
        self._ended: list[tuple[WorkItem, HeadraceError]] = []
        self._num_offers = 0
        self._look: Look | None = None
        self.num_pending = 0
        """Accepted requests that wait now."""

    def offer(self, item: WorkItem, now_s: float) -> HeadraceError | None:
        """Let a request wait, or say why not: its level is full, its deadline passed, or it has too many rows."""
        if now_s >= item.deadline_s:
            return _deadline_error(item, now_s)
        max_rows = max(1, self._config.max_batch_size)
        if item.rows > max_rows:
            return InvalidInput(f"model {item.model!r}: {item.rows} rows in one request, the most is {max_rows}")
        level = self._level(item.priority) if self._batching.priority_levels else 0
        policy = self._batching.policy(level)
        if policy.max_queue_size and self._num_at_level.get(level, 0) >= policy.max_queue_size:
            self._sweep(now_s)  # who is over time holds no place
            if self._num_at_level[level] >= policy.max_queue_size:
                return _full_error(item, level, policy.max_queue_size)
        self._num_offers += 1
        item.arrival, item.rank, item.is_waiting = self._num_offers, 2 * level, True
        self._describe(item)
        self._num_at_level[level] = self._num_at_level.get(level, 0) + 1
        self.num_pending += 1
        self._line(item).add(item)
        end_s = min(item.deadline_s, _queue_end_s(item, policy)) if self._has_timeouts else item.deadline_s
        self._alarms.add(end_s, item, self.num_pending)
        return None

    def take(self, now_s: float, num_idle_instances: int = 1) -> MicroBatch | None:
        """The next micro-batch for an idle instance, or None where nothing waits or more rows are waited for.

        It starts at the oldest request of the highest priority. Requests whose wait ended go to `expire` instead.
        """
        if num_idle_instances < 1:
            return None
        self._sweep(now_s)
        for rank, key in self._in_turn():
            items = self._pick(rank, key, now_s, num_idle_instances)
            if items:
                self._remove(items)
                return MicroBatch(items, sum([item.rows for item in items]))
        return None

    def expire(self, now_s: float) -> list[tuple[WorkItem, HeadraceError]]:
        """Requests whose wait ended by `now_s`, soonest first, each with its error; each is told once."""
        self._sweep(now_s)
        ended, self._ended = self._ended, []
        return ended

    def next_event_s(self, now_s: float) -> float | None:
        """When to call `take` and `expire` again if nothing else happens; None where nothing waits.

        A `max_queue_delay` that has ended is no event: an idle instance has been given its rows, a busy one asks.
        """
        if self._ended:
            return now_s
        soonest = self._alarms.next_s()
        if soonest is None or not self._delay_s:
            return soonest
        delays = [line.oldest().enqueued_s + self._delay_s for line in self._lines.values()]
        return min([soonest, *(at_s for at_s in delays if at_s > now_s)])

    def cancel(self, *keys: Key) -> list[WorkItem]:
        """Remove and mark the waiting requests of these keys (every copy); returns them, for the caller to settle."""
        wanted = frozenset(keys)
        found = [item for line in self._lines.values() for item in line if item.key in wanted]
        for item in found:
            item.is_cancelled = True
        self._remove(found)
        return found

    def hand_back(self, keep: Container[object] = ()) -> list[WorkItem]:
        """Everything that waits leaves, oldest first: this worker drains. Items of a delivery in `keep` stay."""
        waiting = (item for line in self._lines.values() for item in line)
        found = sorted((item for item in waiting if item.delivery not in keep), key=lambda item: item.arrival)
        self._remove(found)
        return found

    # -------- where items wait
    def _line(self, item: WorkItem) -> Line:
        place = (item.rank, None if self._is_ordered else item.batch_key)
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(is_ragged=item.length > 0 and not self._is_ordered)
        return line

    def _remove(self, items: list[WorkItem]) -> None:
        for item in items:
            self._leave_line(item)
            item.is_waiting = False
            self._num_at_level[item.rank // 2] -= 1
        self.num_pending -= len(items)

    def _leave_line(self, item: WorkItem) -> None:
        place = (item.rank, None if self._is_ordered else item.batch_key)
        line = self._lines[place]
        line.remove(item)
        if not line.rows and not line:
            del self._lines[place]

    def _level(self, priority: int) -> int:
        batching = self._batching
        return priority if 0 < priority <= batching.priority_levels else batching.default_priority_level

    def _describe(self, item: WorkItem) -> None:
        if item.must_run_alone or not self._is_joining:
            item.batch_key, item.length = item.arrival if item.must_run_alone else None, 0
            return
        look = self._look
        if look is None or not look.is_of(item):
            look = self._look = look_at(item, self._ragged)
        item.batch_key, item.length = look.key, look.length

    # -------- who goes next
    def _in_turn(self) -> list[tuple[int, object]]:
        """Lines of the highest rank, the one with the oldest request first."""
        if len(self._lines) <= 1:
            return list(self._lines)
        highest = min(rank for rank, _ in self._lines)
        first = [place for place in self._lines if place[0] == highest]
        return sorted(first, key=lambda place: self._lines[place].oldest().arrival)

    def _pick(self, rank: int, key: object, now_s: float, num_idle: int) -> list[WorkItem]:
        line = self._lines[rank, key]
        oldest = line.oldest()
        if oldest.must_run_alone or not self._is_joining:
            return [oldest]
        if oldest.length and not self._is_ordered:
            return self._least_padded(line, now_s, num_idle)
        alike = [line]
        if len(self._lines) > 1:
            alike = [self._lines[place] for place in sorted((p for p in self._lines if p[1] == key), key=_rank)]
        return self._first_come(alike, now_s, num_idle)

    def _first_come(self, lines: list[Line], now_s: float, num_idle: int) -> list[WorkItem]:
        """Requests in order of rank and arrival, up to a preferred size or as many rows as fit."""
        rows_there = sum([line.rows for line in lines])
        oldest_s = min([line.oldest().enqueued_s for line in lines])
        is_waiting_for_more = self._delay_s > 0 and now_s < oldest_s + self._delay_s
        if is_waiting_for_more and not self._preferred and rows_there < self._wanted_rows:
            return []
        max_rows = self._share(rows_there, self._config.max_batch_size, num_idle)
        items: list[WorkItem] = []
        rows, num_preferred, is_full = 0, 0, False
        for item in (item for line in lines for item in line):
            if items and (rows + item.rows > max_rows or (self._is_ordered and item.batch_key != items[0].batch_key)):
                is_full = True
                break
            items.append(item)
            rows += item.rows
            if rows in self._preferred:
                num_preferred = len(items)
        if num_preferred and (is_waiting_for_more or not self._delay_s):
            return items[:num_preferred]
        if is_waiting_for_more and not is_full and rows < self._wanted_rows:
            return []
        if items[0].length and len(items) > 1:
            return items[: pick_prefix([item.length for item in items], [item.rows for item in items], self._cost)]
        return items

    def _least_padded(self, line: Line, now_s: float, num_idle: int) -> list[WorkItem]:
        """The oldest request and those of about its length, as many as make the execution worth most."""
        max_rows, max_tokens = self._config.max_batch_size, self._cost.max_padded_tokens
        is_full = line.rows >= self._wanted_rows or line.tokens >= max_tokens
        if not is_full and now_s < line.oldest().enqueued_s + self._delay_s:
            return []
        cost = PaddingCost(self._cost.base_tokens, self._share(line.tokens, max_tokens, num_idle))
        candidates, oldest = line.around_oldest(max_rows)
        lengths = [item.length for item in candidates]
        first, end = pick_run(lengths, [item.rows for item in candidates], oldest, max_rows, cost)
        return candidates[first:end]

    def _share(self, waiting: int, limit: int, num_idle: int) -> int:
        """The part of what waits for one of several idle instances; all that fits if the model is set to gather."""
        if num_idle == 1 or self._delay_s or self._preferred:
            return limit
        return max(1, min(limit, math.ceil(waiting / num_idle)))

    # -------- whose wait ends
    def _sweep(self, now_s: float) -> None:
        for item in self._alarms.due(now_s):
            policy = self._batching.policy(item.rank // 2)
            if now_s >= item.deadline_s:
                self._end(item, _deadline_error(item, now_s))
            elif policy.timeout_action == "REJECT":
                self._end(item, _timeout_error(item, policy))
            else:
                self._put_behind(item)

    def _end(self, item: WorkItem, error: HeadraceError) -> None:
        self._remove([item])
        self._ended.append((item, error))

    def _put_behind(self, item: WorkItem) -> None:
        """DELAY: it waits behind everything of its level, with no queue time-out any more."""
        self._leave_line(item)
        item.rank += 1
        self._line(item).add_in_turn(item)
        self._alarms.add(item.deadline_s, item, self.num_pending)


def _rank(place: tuple[int, object]) -> int:
    return place[0]


def _queue_end_s(item: WorkItem, policy: QueuePolicy) -> float:
    timeout_us = policy.default_timeout_us
    if policy.allow_timeout_override and item.queue_timeout_us:
        timeout_us = min(item.queue_timeout_us, timeout_us or item.queue_timeout_us)
    return item.admitted_s + timeout_us / 1e6 if timeout_us else math.inf


def _deadline_error(item: WorkItem, now_s: float) -> DeadlineExceeded:
    waited_ms = (now_s - item.admitted_s) * 1000
    return DeadlineExceeded(f"model {item.model!r}: the deadline passed after {waited_ms:.0f} ms in the queue")


def _full_error(item: WorkItem, level: int, max_queue_size: int) -> QueueFull:
    where = f" at priority level {level}" if level else ""
    return QueueFull(f"model {item.model!r}: {max_queue_size} requests wait{where}, max_queue_size is {max_queue_size}")


def _timeout_error(item: WorkItem, policy: QueuePolicy) -> QueueTimeout:
    timeout_us = round((_queue_end_s(item, policy) - item.admitted_s) * 1e6)
    return QueueTimeout(f"model {item.model!r}: not started within its queue time-out of {timeout_us} µs")
