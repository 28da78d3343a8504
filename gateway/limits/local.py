"""Counts in this process, for a single gateway, or for as long as the shared store is away. No I/O, nothing awaits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.limits.bucket import Bucket
from gateway.limits.store import Admit, Operation, Settle
from gateway.limits.verdict import Decision, Level, Limit

SWEEP_EVERY: Final = 4096
"""Operations between two looks for counts that are back at zero; a look is in proportion to what is there."""


def monotonic_us() -> int:
    """This process's clock; nobody sets it."""
    return time.monotonic_ns() // 1000


class LocalStore:
    """A store that answers at once."""

    def __init__(self, lease_us: int, now_us: Callable[[], int] = monotonic_us) -> None:
        self._lease_us = lease_us
        self._now_us = now_us
        self._buckets: dict[str, Bucket] = {}
        self._limits: dict[str, Limit] = {}
        self._num_until_sweep = SWEEP_EVERY

    def __len__(self) -> int:
        """Limits with counts."""
        return len(self._buckets)

    async def start(self) -> None:
        """See `Store.start`."""

    async def close(self) -> None:
        """See `Store.close`."""

    async def call(self, operations: Sequence[Operation]) -> list[Decision]:
        """See `Store.call`."""
        return [d for op in operations if (d := self.do(op)) is not None]

    def do(self, operation: Operation) -> Decision | None:
        """One operation, now."""
        now_us = self._now_us()
        self._num_until_sweep -= 1
        if not self._num_until_sweep:
            self._sweep(now_us)
        if isinstance(operation, Admit):
            return self._admit(operation, now_us)
        for number, demand in enumerate(operation.demands):
            bucket = self._bucket(demand.limit, now_us)
            if isinstance(operation, Settle):
                bucket.settle(demand.limit, operation.lease, demand.amount, operation.used[number])
            else:
                bucket.renew(demand.limit, operation.lease, demand.amount, now_us + self._lease_us)
        return None

    def _admit(self, asked: Admit, now_us: int) -> Decision:
        buckets = [self._bucket(d.limit, now_us) for d in asked.demands]
        waits = [b.wait_us(d.limit, d.amount) for b, d in zip(buckets, asked.demands, strict=True)]
        is_admitted = not any(waits)
        if is_admitted and not asked.is_dry:
            until_us = now_us + self._lease_us
            for bucket, demand in zip(buckets, asked.demands, strict=True):
                bucket.take(demand.limit, demand.amount, asked.lease, until_us)
        levels = tuple([Level(b.level, w) for b, w in zip(buckets, waits, strict=True)])
        return Decision(is_admitted, levels)

    def _bucket(self, limit: Limit, now_us: int) -> Bucket:
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            bucket = self._buckets[limit.key] = Bucket()
        self._limits[limit.key] = limit
        bucket.advance(limit, now_us)
        return bucket

    def _sweep(self, now_us: int) -> None:
        self._num_until_sweep = SWEEP_EVERY + len(self._buckets)
        for key in list(self._buckets):
            bucket = self._buckets[key]
            bucket.advance(self._limits[key], now_us)
            if bucket.is_idle:
                del self._buckets[key], self._limits[key]
