"""What every worker has ever counted, added up by model version: live workers' figures and those of the dead. No I/O.

    heartbeat -> hear: a life's figures replace what it said before
    worker dead -> bury: its last figures stay in the sum

A *life* is one worker process's counting of one version. Sums are of what this gateway has heard: they outlive workers,
but not this gateway, and miss what a worker counted after its last heartbeat.

Invariants: a sum never falls while the gateway lives; no life counts twice, even if it comes back after it was taken
for dead, as long as no more than MAX_DEAD others died meanwhile (tests/unit/test_ledger.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from contract.messages import WorkerBeat
from contract.model_config import ModelStats

MAX_DEAD: Final = 64
"""Dead lives of a version kept apart, in case one was only frozen; older ones are one sum."""
MAX_VERSIONS: Final = 10_000
"""Versions remembered; those not heard of for the longest time are forgotten first."""

VersionKey = tuple[str, str, str]
"""(group, model, version)"""
Life = tuple[str, int]
"""(worker, start of its counters)"""


class _Account:
    """One version's lives."""

    __slots__ = ("dead", "live", "past")

    def __init__(self) -> None:
        self.live: dict[Life, ModelStats] = {}
        self.dead: dict[Life, ModelStats] = {}
        self.past: ModelStats | None = None

    def hear(self, life: Life, stats: ModelStats) -> None:
        self.dead.pop(life, None)
        self.live[life] = stats

    def bury(self, worker: str) -> None:
        for life in [life for life in self.live if life[0] == worker]:
            self.dead[life] = self.live.pop(life)
        while len(self.dead) > MAX_DEAD:
            oldest = self.dead.pop(next(iter(self.dead)))
            self.past = add_up([oldest] if self.past is None else [self.past, oldest])

    def total(self) -> ModelStats:
        past = [] if self.past is None else [self.past]
        return add_up([*past, *self.dead.values(), *self.live.values()])


class Ledger:
    """All versions' accounts."""

    def __init__(self) -> None:
        self._accounts: dict[VersionKey, _Account] = {}

    def hear(self, beat: WorkerBeat) -> None:
        """Take a worker's figures."""
        for stats in beat.stats:
            key = (beat.group, stats.model, stats.version)
            account = self._accounts.pop(key, None) or _Account()
            self._accounts[key] = account
            account.hear((beat.worker, stats.since_unix_ms or beat.started_unix_ms), stats)
        while len(self._accounts) > MAX_VERSIONS:
            del self._accounts[next(iter(self._accounts))]

    def bury(self, beat: WorkerBeat) -> None:
        """This worker is dead."""
        for account in self._accounts.values():
            account.bury(beat.worker)

    def total(self, group: str, model: str, version: str) -> ModelStats:
        """Everything counted for a version; zeros if nothing is known. Its gauges mean nothing."""
        account = self._accounts.get((group, model, version))
        return ModelStats(model, version) if account is None else account.total()


def add_up(lives: Iterable[ModelStats]) -> ModelStats:
    """One version's counters of several lives as one; there must be one at least."""
    first, *others = lives
    total = ModelStats(first.model, first.version)
    for stats in (first, *others):
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        total.last_inference_unix_ms = max(total.last_inference_unix_ms, stats.last_inference_unix_ms)
        for rows, num in stats.rows_per_execution.items():
            total.rows_per_execution[rows] = total.rows_per_execution.get(rows, 0) + num
        for reason, num in stats.failures.items():
            total.failures[reason] = total.failures.get(reason, 0) + num
        for rows, (input_us, infer_us, output_us) in stats.batch_us.items():
            known = total.batch_us.get(rows, (0, 0, 0))
            total.batch_us[rows] = (known[0] + input_us, known[1] + infer_us, known[2] + output_us)
        if len(total.queue_buckets) in (0, len(stats.queue_buckets)):  # another release's bounds may be others
            known_buckets = total.queue_buckets or (0,) * len(stats.queue_buckets)
            total.queue_buckets = tuple([a + b for a, b in zip(known_buckets, stats.queue_buckets, strict=True)])
    return total


_SUMS: Final = (
    "num_success",
    "num_failed",
    "num_inferences",
    "num_executions",
    "queue_us",
    "compute_input_us",
    "compute_infer_us",
    "compute_output_us",
    "failed_us",
)
