"""Which items look alike, the lines they wait in, and when waiting ends. Pure; no policy, no batching.

Invariants: what was added and not removed is what is there, in order of arrival; alarms never hold more than twice
the most items that ever waited and a constant (tests/property/test_batcher.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final

from contract.messages import Layout
from workers.items import WorkItem

MAX_STALE: Final = 64
"""Alarms of items that left, beyond as many as wait: rare enough to clean, too few to hold much memory."""


@dataclass(frozen=True, slots=True)
class Look:
    """What an item looks like to the batcher; requests of one message share their layout, so they share this."""

    layout: Layout
    version: str
    outputs: tuple[str, ...]
    key: object
    """Items with equal keys may be joined."""
    length: int
    """Padded elements of one row of the longest ragged input, at least 1; 0 without ragged inputs."""

    def is_of(self, item: WorkItem) -> bool:
        """Whether `item` surely looks like this."""
        return item.layout is self.layout and item.outputs == self.outputs and item.version == self.version


def look_at(item: WorkItem, ragged: frozenset[str]) -> Look:
    """Items may be joined if inputs agree in order, name, datatype and inner shape; `ragged` ones in rank only."""
    inputs = []
    length = 0
    for head in item.layout.tensors:
        inner: tuple[int, ...] | int = head.shape[1:]
        if head.name in ragged:
            length = max(length, 1, math.prod(head.shape[1:]))
            inner = len(head.shape)
        inputs.append((head.name, head.datatype, inner))
    return Look(item.layout, item.version, item.outputs, (item.version, item.outputs, *inputs), length)


class Line:
    """Waiting items of one priority rank that look alike, oldest first; by length too where rows are ragged."""

    __slots__ = ("_by_length", "_fifo", "_is_ragged", "rows", "tokens")

    def __init__(self, *, is_ragged: bool) -> None:
        self._is_ragged = is_ragged
        self._fifo: OrderedDict[int, WorkItem] = OrderedDict()
        self._by_length: list[tuple[int, int, WorkItem]] = []
        self.rows = 0
        self.tokens = 0
        """Sum of rows times length: what an execution without padding would compute."""

    def __len__(self) -> int:
        return len(self._fifo)

    def __iter__(self) -> Iterator[WorkItem]:
        return iter(self._fifo.values())

    def add(self, item: WorkItem) -> None:
        """Wait behind all that are here."""
        self._fifo[item.arrival] = item
        self.rows += item.rows
        if self._is_ragged:
            insort(self._by_length, (item.length, item.arrival, item))
            self.tokens += item.rows * item.length

    def add_in_turn(self, item: WorkItem) -> None:
        """Wait among those that are here by arrival: it comes from another line."""
        later = list(takewhile(lambda arrival: arrival > item.arrival, reversed(self._fifo)))
        self.add(item)
        for arrival in reversed(later):
            self._fifo.move_to_end(arrival)

    def remove(self, item: WorkItem) -> None:
        """This one leaves; it must wait here."""
        del self._fifo[item.arrival]
        self.rows -= item.rows
        if self._is_ragged:
            del self._by_length[self._place(item)]
            self.tokens -= item.rows * item.length

    def oldest(self) -> WorkItem:
        """The first to be taken; the line must not be empty."""
        return next(iter(self._fifo.values()))

    def around_oldest(self, reach: int) -> tuple[list[WorkItem], int]:
        """Up to `reach` items on each side of the oldest by length, shortest first, and the index of the oldest."""
        at = self._place(self.oldest())
        low = max(0, at - reach)
        return [entry[2] for entry in self._by_length[low : at + reach + 1]], at - low

    def _place(self, item: WorkItem) -> int:
        return bisect_left(self._by_length, (item.length, item.arrival))


class Alarms:
    """When the wait of each item ends, soonest first; alarms of items that left, or came anew, are dropped."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, WorkItem]] = []

    def add(self, at_s: float, item: WorkItem, num_waiting: int) -> None:
        """Ring for `item` at `at_s` if it still waits then; `num_waiting` are those that wait now."""
        heap = self._heap
        heappush(heap, (at_s, item.arrival, item))
        if len(heap) > 2 * num_waiting + MAX_STALE:
            self._heap = [alarm for alarm in heap if _is_valid(alarm)]
            heapify(self._heap)

    def next_s(self) -> float | None:
        """The next time one rings."""
        heap = self._heap
        while heap and not _is_valid(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_s: float) -> list[WorkItem]:
        """Waiting items whose alarm has rung by `now_s`, soonest first; each alarm rings once."""
        heap = self._heap
        found = []
        while heap and heap[0][0] <= now_s:
            alarm = heappop(heap)
            if _is_valid(alarm):
                found.append(alarm[2])
        return found


def _is_valid(alarm: tuple[float, int, WorkItem]) -> bool:
    return alarm[2].is_waiting and alarm[2].arrival == alarm[1]
