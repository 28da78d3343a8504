"""One limit, and what was decided about a request. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Scope = Literal["cluster", "node", "service", "interface", "group", "model", "tenant", "key"]
Unit = Literal["qps", "concurrency", "tokens", "rows"]
Kind = Literal[0, 1, 2]

SCOPES: Final[tuple[Scope, ...]] = ("cluster", "node", "service", "interface", "group", "model", "tenant", "key")
RATE: Final = 0
"""A bucket that leaks; what was taken is gone."""
TOKENS: Final = 1
"""A bucket that leaks; what was reserved is settled to what was used."""
HELD: Final = 2
"""A sum of leases; nothing leaks."""
KINDS: Final[dict[Unit, Kind]] = {"qps": RATE, "tokens": TOKENS, "concurrency": HELD, "rows": HELD}


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit as it holds for one name."""

    scope: Scope
    name: str
    """Whose: a tenant, a model, `tenant/key`; empty for the cluster's and a node's."""
    unit: Unit
    limit: float
    """As configured, in `per`."""
    per: str
    """`second`, `minute`, or empty for what is held."""
    capacity: float
    """How much may be taken at once."""
    rate_per_us: float
    """How much comes back in a microsecond; 0 for what is held."""
    configured_at: str
    key: str
    """Of its counts in the store."""

    @property
    def kind(self) -> Kind:
        """How it counts."""
        return KINDS[self.unit]

    @property
    def strategy(self) -> str:
        """`cluster-qps`, `tenant-tokens`, …"""
        return f"{self.scope}-{self.unit}"

    @property
    def shown(self) -> str:
        """The limit in words."""
        what = {"qps": "requests", "tokens": "tokens", "concurrency": "requests at a time", "rows": "queued rows"}
        per = f" per {self.per}" if self.per else ""
        return f"{self.limit:g} {what[self.unit]}{per}"


@dataclass(frozen=True, slots=True)
class Level:
    """How a limit stands for a request."""

    used: float
    """Of its capacity; with the request in it, if that was admitted."""
    wait_us: int
    """Until the request would fit if nobody else came: 0 it fits, NEVER, or UNKNOWN (somebody must end first)."""


NEVER: Final = -1
UNKNOWN: Final = -2


@dataclass(frozen=True, slots=True)
class Decision:
    """A store's answer about all limits of a request."""

    is_admitted: bool
    levels: tuple[Level, ...]
    """In the order of what was asked."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request does not come in: the limit that keeps it out longest."""

    limit: Limit
    current: float
    """What is taken of the limit's capacity."""
    asked: float
    """What the request would take."""
    retry_after_s: float | None
    """When it would fit if nobody else came; None: never."""

    @property
    def is_final(self) -> bool:
        """Whether it can never fit."""
        return self.retry_after_s is None
