"""The core with limits before it: decides, refuses, and gives back at a request's end. Counts in this process only.

Invariants: what a request holds is given back exactly once, when it ends (tests/integration/test_limits_at_doors.py).
"""

from __future__ import annotations

from collections import deque
from itertools import count
from statistics import median
from time import monotonic
from typing import Final

from gateway.core import Core, Done, InferRequest, Outcome, Pending, Target
from gateway.limits.local import LocalStore
from gateway.limits.match import Asked, Rulebook
from gateway.limits.refusal import LimitRefused
from gateway.limits.store import Admit, Demand, Settle
from gateway.limits.verdict import HELD, NEVER, UNKNOWN, Decision, Refused

LEASE_US: Final = 3_600_000_000
"""A gateway's own counts go with it: no lease needs to end before its request, and none lives this long."""
HOLDS: Final = 256
"""So many of the last requests say how long one takes."""


class _Nothing:
    """The Pending of a refused request."""

    def cancel(self) -> None:
        """Nothing is left to cancel."""


_REFUSED: Final = _Nothing()


class Gate:
    """A core whose `submit` asks the limits first; everything else is the core's own."""

    def __init__(self, core: Core, rulebook: Rulebook, store: LocalStore) -> None:
        self._core = core
        self._rulebook = rulebook
        self._store = store
        self._leases = count(1)
        self._holds_s: deque[float] = deque(maxlen=HOLDS)
        self.repository = core.repository
        self.resolve = core.resolve
        self.models = core.models
        self.statistics = core.statistics
        self.refresh = core.refresh

    @property
    def is_ready(self) -> bool:
        """See `Core.is_ready`."""
        return self._core.is_ready

    def submit(self, target: Target, request: InferRequest, done: Done) -> Pending:
        """See `Core.submit`."""
        who = request.principal
        asked = Asked(target.service, "infer", target.group, target.card.config.name, who.tenant, who.key_id)
        # A plain tensor request has no tokens and is no batch job's row.
        demands = tuple([Demand(x, 1) for x in self._rulebook.match(asked) if x.unit in ("qps", "concurrency")])
        if not demands or "infer" not in who.roles:
            return self._core.submit(target, request, done)
        lease = str(next(self._leases))
        decision = self._store.do(Admit(lease, demands))
        assert decision is not None
        if not decision.is_admitted:
            done(LimitRefused(self._refused(demands, decision)))
            return _REFUSED
        began_s = monotonic()

        def ended(outcome: Outcome) -> None:
            self._holds_s.append(monotonic() - began_s)
            held = tuple([d for d in demands if d.limit.kind == HELD])
            self._store.do(Settle(lease, held, (0,) * len(held)))
            done(outcome)

        return self._core.submit(target, request, ended)

    def _refused(self, demands: tuple[Demand, ...], decision: Decision) -> Refused:
        """The limit that keeps the request out longest."""
        found: list[tuple[float, Demand, float]] = []
        for demand, level in zip(demands, decision.levels, strict=True):
            wait_s = level.wait_us / 1e6
            if level.wait_us == NEVER:
                wait_s = float("inf")
            elif level.wait_us == UNKNOWN:
                wait_s = median(self._holds_s) if self._holds_s else 1.0
            if level.wait_us:
                found.append((wait_s, demand, level.used))
        wait_s, demand, used = max(found, key=lambda entry: entry[0])
        return Refused(demand.limit, used, demand.amount, None if wait_s == float("inf") else wait_s)
