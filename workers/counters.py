"""Counters of one model version on one worker, as Triton counts them. Data and arithmetic only.

Executions count once and only if they succeeded; requests count once, and each is charged the whole compute time of
the execution it shared. So `compute time / successful requests` is what one request waited for it, and the same sums
by batch size, where each execution counts once, say what executions cost.

Source: Triton, docs/protocol/extension_statistics.md and docs/user_guide/metrics.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from contract.errors import Cancelled, DeadlineExceeded, HeadraceError, ModelFailed, Unavailable
from contract.model_config import QUEUE_BOUNDS_US, FailureReason, ModelStats

MAX_BATCH_SIZES: Final = 128
"""Batch sizes told apart, so that a heartbeat stays small whatever callers send; later ones count under the next known
larger size, or the largest."""


TimesUs = tuple[int, int, int]
"""Of input, inference and output."""


class ModelRun(NamedTuple):
    """One execution in which at least one request succeeded."""

    rows: int
    num_answered: int
    times_us: TimesUs


def reason_of(error: HeadraceError) -> FailureReason:
    """Triton's word for it."""
    if isinstance(error, Unavailable):
        return "REJECTED"
    if isinstance(error, DeadlineExceeded):
        return "EXPIRED"
    if isinstance(error, Cancelled):
        return "CANCELED"
    return "BACKEND" if isinstance(error, ModelFailed) else "OTHER"


class VersionCounters:
    """What happened since `since_unix_ms`."""

    __slots__ = (
        "_buckets",
        "_by_rows",
        "_failures",
        "failed_us",
        "infer_us",
        "input_us",
        "last_unix_ms",
        "num_executions",
        "num_inferences",
        "num_success",
        "output_us",
        "queue_us",
        "since_unix_ms",
    )

    def __init__(self, since_unix_ms: int = 0) -> None:
        self.since_unix_ms = since_unix_ms
        self.num_success = 0
        self.num_inferences = 0
        self.num_executions = 0
        self.queue_us = 0
        self.failed_us = 0
        self.last_unix_ms = 0
        self.input_us = 0
        self.infer_us = 0
        self.output_us = 0
        self._failures: dict[FailureReason, int] = {}
        self._by_rows: dict[int, list[int]] = {}
        """Number of executions and their microseconds of input, inference and output."""
        self._buckets = [0] * (len(QUEUE_BOUNDS_US) + 1)

    def add_run(self, rows: int, num_answered: int, times_us: TimesUs, now_ms: int) -> None:
        """One execution; its requests are counted as they end."""
        input_us, infer_us, output_us = times_us
        self.num_executions += 1
        self.last_unix_ms = now_ms
        self.input_us += input_us * num_answered
        self.infer_us += infer_us * num_answered
        self.output_us += output_us * num_answered
        sums = self._by_rows.get(rows)
        if sums is None:
            sums = self._by_rows.setdefault(self._told_as(rows), [0, 0, 0, 0])
        sums[0] += 1
        sums[1] += input_us
        sums[2] += infer_us
        sums[3] += output_us

    def add_answer(self, rows: int, queue_us: int) -> None:
        """One request of some execution succeeded."""
        self.num_success += 1
        self.num_inferences += rows
        self.queue_us += queue_us
        self._buckets[bisect_left(QUEUE_BOUNDS_US, queue_us)] += 1

    def add_block(self, rows: int, queue_us: list[int], times_us: TimesUs, now_ms: int) -> None:
        """One execution of blocks with its requests' queue times, whose order is not kept."""
        num, buckets = len(queue_us), self._buckets
        self.add_run(rows, num, times_us, now_ms)
        self.num_success += num
        self.num_inferences += rows
        if num == 1:
            self.queue_us += queue_us[0]
            buckets[bisect_left(QUEUE_BOUNDS_US, queue_us[0])] += 1
            return
        self.queue_us += sum(queue_us)
        # Requests of one micro-batch waited about as long: sorted, they are counted a bucket at a time.
        queue_us.sort()
        start = 0
        while start < num:
            bucket = bisect_left(QUEUE_BOUNDS_US, queue_us[start])
            end = num if bucket == len(QUEUE_BOUNDS_US) else bisect_right(queue_us, QUEUE_BOUNDS_US[bucket], start)
            buckets[bucket] += end - start
            start = end

    def add_failure(self, reason: FailureReason, after_us: int) -> None:
        """One request ended badly, so long after its admission."""
        self._failures[reason] = self._failures.get(reason, 0) + 1
        self.failed_us += max(0, after_us)

    def to_stats(self, model: str, version: str) -> ModelStats:
        """As heartbeats carry them; gauges are the caller's to fill in."""
        return ModelStats(
            model=model,
            version=version,
            num_success=self.num_success,
            num_failed=sum(self._failures.values()),
            num_inferences=self.num_inferences,
            num_executions=self.num_executions,
            queue_us=self.queue_us,
            compute_input_us=self.input_us,
            compute_infer_us=self.infer_us,
            compute_output_us=self.output_us,
            last_inference_unix_ms=self.last_unix_ms,
            rows_per_execution={rows: sums[0] for rows, sums in self._by_rows.items()},
            failures=dict(self._failures),
            failed_us=self.failed_us,
            batch_us={rows: (sums[1], sums[2], sums[3]) for rows, sums in self._by_rows.items()},
            queue_buckets=tuple(self._buckets),
            since_unix_ms=self.since_unix_ms,
        )

    def _told_as(self, rows: int) -> int:
        known = self._by_rows
        if len(known) < MAX_BATCH_SIZES:
            return rows
        return min([size for size in known if size > rows], default=max(known))
