"""Micro-batches in execution: which may be settled when, and whether a model is tiny enough for the loop. Pure."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from workers.items import Outcome, WorkItem
from workers.seats import Seat

SLOW_FACTOR: Final = 4
NUM_SLOW_RUNS: Final = 3
"""A tiny model is none if so many executions in a row take so many times the limit."""


@dataclass(eq=False, slots=True)
class Job:
    """A micro-batch in execution."""

    seat: Seat
    items: Sequence[WorkItem]
    timer: asyncio.TimerHandle | None = None
    outcomes: Sequence[Outcome] | None = None
    on_end: Callable[[], None] | None = None
    rows: int = 0
    started_s: float = 0.0


class Jobs:
    """Jobs of one model version in the order of their start."""

    __slots__ = ("_is_ordered", "_jobs")

    def __init__(self, *, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, job: Job) -> None:
        """It runs from now on."""
        self._jobs.append(job)

    def end(self, job: Job, outcomes: Sequence[Outcome]) -> list[Job]:
        """The jobs to settle now: this one; with `preserve_ordering` only behind all that started earlier."""
        job.outcomes = outcomes
        if not self._is_ordered:
            self._jobs.remove(job)
            return [job]
        ready: list[Job] = []
        while self._jobs and self._jobs[0].outcomes is not None:
            ready.append(self._jobs.popleft())
        return ready


class Pace:
    """Whether executions are short enough to run in the event loop."""

    __slots__ = ("_limit_s", "_num_slow", "is_tiny")

    def __init__(self, run_s: float | None, limit_s: float) -> None:
        self._limit_s = limit_s
        self._num_slow = 0
        self.is_tiny = run_s is not None and run_s < limit_s

    def note(self, took_s: float) -> bool:
        """One more execution in the loop; True when it was one slow one too many and the model moves to threads."""
        if took_s < SLOW_FACTOR * self._limit_s:
            self._num_slow = 0
            return False
        self._num_slow += 1
        self.is_tiny = self._num_slow < NUM_SLOW_RUNS
        return not self.is_tiny
