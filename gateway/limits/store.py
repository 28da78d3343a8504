"""What a store of counts is asked and answers. Data and a protocol; local.py and redis_store.py keep it.

A call is a list of operations that is decided in order and at once: no other gateway's operation comes between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.limits.verdict import Decision, Limit


class StoreAway(Exception):
    """The store did not answer in time, or said that it can't; the message says what."""


class StoreUnusable(Exception):
    """The store is there but is none for us, which waiting won't change; the message says why."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request wants of one limit."""

    limit: Limit
    amount: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Take every demand, or nothing."""

    lease: str
    demands: tuple[Demand, ...]
    is_dry: bool = False
    """Only say what would be."""


@dataclass(frozen=True, slots=True)
class Settle:
    """End what was taken under `lease`: `used` of each demand, in their order, was used."""

    lease: str
    demands: tuple[Demand, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    """What was taken under `lease` is still needed."""

    lease: str
    demands: tuple[Demand, ...]


Operation = Admit | Settle | Renew


class Store(Protocol):
    """Counts that decide."""

    async def start(self) -> None:
        """Raises StoreUnusable; StoreAway if it may come yet."""

    async def call(self, operations: Sequence[Operation]) -> list[Decision]:
        """Do them; a decision for each Admit, in order. Raises StoreAway: then some may have been done, or none."""

    async def close(self) -> None:
        """Let go of connections."""
