"""What a worker counts, and under which name a failure goes."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from contract.errors import HeadraceError, all_errors
from contract.model_config import QUEUE_BOUNDS_US
from workers.counters import MAX_BATCH_SIZES, VersionCounters, reason_of

NUM_BUCKETS = len(QUEUE_BOUNDS_US) + 1


def test_an_execution_counts_once_and_each_of_its_requests_is_charged_its_whole_time() -> None:
    counters = VersionCounters()
    counters.add_run(rows=5, num_answered=2, times_us=(10, 100, 1), now_ms=7)
    for rows in (2, 3):
        counters.add_answer(rows, queue_us=1_000)
    stats = counters.to_stats("m", "1")
    assert (stats.num_success, stats.num_inferences, stats.num_executions) == (2, 5, 1)
    assert (stats.compute_input_us, stats.compute_infer_us, stats.compute_output_us) == (20, 200, 2)
    assert stats.rows_per_execution == {5: 1}
    assert stats.batch_us == {5: (10, 100, 1)}
    assert (stats.queue_us, stats.last_inference_unix_ms) == (2_000, 7)


def test_a_block_counts_as_its_requests_one_by_one() -> None:
    chance = random.Random(4)
    one, other = VersionCounters(), VersionCounters()
    for _ in range(200):
        num = chance.choice((1, 2, 7, 32))
        waits_us = [int(10 ** chance.uniform(0, 8.5)) for _ in range(num)]
        one.add_run(num * 2, num, (3, 4, 5), 9)
        for queue_us in waits_us:
            one.add_answer(2, queue_us)
        other.add_block(num * 2, list(waits_us), (3, 4, 5), 9)
    assert one.to_stats("m", "1") == other.to_stats("m", "1")


@pytest.mark.parametrize("queue_us", [0, 499, 500, 501, 4_999, 5_000, 5_001, 60_000_000, 60_000_001])
@pytest.mark.parametrize("num", [1, 3])
def test_a_queue_time_falls_into_the_bucket_whose_bound_it_does_not_exceed(queue_us: int, num: int) -> None:
    counters = VersionCounters()
    counters.add_block(num, [queue_us] * num, (0, 0, 0), 0)
    wanted = [0] * NUM_BUCKETS
    wanted[bisect_left(QUEUE_BOUNDS_US, queue_us)] = num
    assert list(counters.to_stats("m", "1").queue_buckets) == wanted


def test_a_bound_lies_at_five_milliseconds_and_they_rise() -> None:
    assert 5_000 in QUEUE_BOUNDS_US
    assert list(QUEUE_BOUNDS_US) == sorted(set(QUEUE_BOUNDS_US))


def test_failures_are_counted_by_reason_with_the_time_they_took() -> None:
    counters = VersionCounters()
    counters.add_failure("REJECTED", 5)
    counters.add_failure("REJECTED", -3)
    counters.add_failure("BACKEND", 10)
    stats = counters.to_stats("m", "1")
    assert stats.failures == {"REJECTED": 2, "BACKEND": 1}
    assert (stats.num_failed, stats.failed_us) == (3, 15)


def test_the_batch_sizes_told_apart_are_bounded_and_no_execution_is_lost() -> None:
    counters = VersionCounters()
    for rows in range(10, 10 + 2 * MAX_BATCH_SIZES):
        counters.add_run(rows, 1, (1, 1, 1), 0)
    counters.add_run(1, 1, (1, 1, 1), 0)
    stats = counters.to_stats("m", "1")
    assert len(stats.batch_us) == len(stats.rows_per_execution) == MAX_BATCH_SIZES
    assert sum(stats.rows_per_execution.values()) == stats.num_executions == 2 * MAX_BATCH_SIZES + 1
    assert stats.rows_per_execution[10] == 2, "the small one counts under the next larger size"
    assert stats.rows_per_execution[9 + MAX_BATCH_SIZES] == MAX_BATCH_SIZES + 1, "larger ones under the largest"


REASONS = {
    "invalid-input": "OTHER",
    "queue-full": "REJECTED",
    "queue-timeout": "REJECTED",
    "draining": "REJECTED",
    "model-not-ready": "REJECTED",
    "deadline-exceeded": "EXPIRED",
    "cancelled": "CANCELED",
    "model-failed": "BACKEND",
    "instance-died": "BACKEND",
    "poison-request": "BACKEND",
    "execution-timeout": "BACKEND",
    "internal-error": "OTHER",
}


@pytest.mark.parametrize("error", [e for e in all_errors() if e.code in REASONS], ids=lambda e: e.code)
def test_a_failure_has_tritons_reason(error: type[HeadraceError]) -> None:
    assert reason_of(error("why")) == REASONS[error.code]
