"""The arithmetic of one limit's counts: leak, take, give back, lease, expire. Pure; is told the time in microseconds.

limits.lua says the same in Lua; tests/conformance/test_limit_stores.py holds the two equal, step by step.

    rate    level leaks; take adds
    tokens  level leaks; take adds and leases; settle corrects by what was used, an expired lease gives all back
    held    level is the sum of leases; settle and expiry subtract

Invariants: over any time `t` what is taken, less what is given back, is at most capacity + rate * t; a lease is given
back exactly once, by its settling or by its expiry (tests/property/test_limits.py).
"""

from __future__ import annotations

import math
from typing import Final

from gateway.limits.verdict import HELD, NEVER, RATE, UNKNOWN, Limit

EPSILON: Final = 1e-6
"""Of a request: what floating point may lose between a wait that was told and its end. Amounts are whole numbers."""


class Bucket:
    """The counts of one limit."""

    __slots__ = ("at_us", "leases", "level")

    def __init__(self) -> None:
        self.level = 0.0
        self.at_us = 0
        self.leases: dict[str, tuple[float, int]] = {}
        """(amount, expiry µs) by id."""

    @property
    def is_idle(self) -> bool:
        """Whether it says the same as a new one."""
        return self.level <= 0 and not self.leases

    def advance(self, limit: Limit, now_us: int) -> None:
        """Leak what the time allows and end leases that expired. A clock that was set back stops the leak only."""
        if now_us > self.at_us:
            self.level = max(0.0, self.level - (now_us - self.at_us) * limit.rate_per_us)
        self.at_us = now_us
        if limit.kind == RATE or not self.leases:
            return
        for lease in [lease for lease, (_, until_us) in self.leases.items() if until_us <= now_us]:
            amount, _ = self.leases.pop(lease)
            self.level = max(0.0, self.level - amount)

    def wait_us(self, limit: Limit, amount: float) -> int:
        """0 if `amount` fits now; see `Level.wait_us`."""
        if amount > limit.capacity:
            return NEVER
        over = self.level + amount - limit.capacity
        if over <= EPSILON:
            return 0
        return UNKNOWN if limit.kind == HELD else math.ceil((over - EPSILON / 2) / limit.rate_per_us)

    def take(self, limit: Limit, amount: float, lease: str, until_us: int) -> None:
        """Take what `wait_us` found to fit."""
        self.level += amount
        if limit.kind != RATE and amount > 0:
            self.leases[lease] = (amount, until_us)

    def settle(self, limit: Limit, lease: str, taken: float, used: float) -> None:
        """End what was taken; `used` of it counts. After its lease expired, what was used is charged all the same."""
        if limit.kind == RATE:
            self.level = max(0.0, self.level + used - taken)
            return
        found = self.leases.pop(lease, None)
        change = -taken if found is not None else 0.0
        if limit.kind != HELD:
            change += used
        self.level = max(0.0, self.level + change)

    def renew(self, limit: Limit, lease: str, amount: float, until_us: int) -> None:
        """Hold it longer; one that expired meanwhile is taken again, fit or not: its request still runs."""
        if limit.kind == RATE or amount <= 0:
            return
        if lease not in self.leases:
            self.level += amount
        self.leases[lease] = (amount, until_us)
