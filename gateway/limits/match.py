"""Which limits apply to a request: those of everything it is part of. Pure; remembers what it found."""

from __future__ import annotations

from typing import Final, NamedTuple

from contract.subjects import encode_token
from gateway.limits.rules import EVERY, Rule, Rules
from gateway.limits.verdict import SCOPES, Limit, Unit

MAX_REMEMBERED: Final = 50_000
"""Kinds of requests whose limits are remembered; then they are looked up anew."""


class Asked(NamedTuple):
    """What a request is part of."""

    service: str
    interface: str
    group: str
    model: str
    tenant: str
    key_id: str


class Rulebook:
    """All limits in force in one gateway."""

    def __init__(self, rules: Rules, *, node: str, prefix: str) -> None:
        self.rules = rules
        self._node = node
        self._prefix = prefix
        self._scopes = [scope for scope in SCOPES if any(found == scope for found, _ in rules)]
        self._found: dict[Asked, tuple[Limit, ...]] = {}
        self._limits: dict[tuple[str, str, str], Limit] = {}

    def __bool__(self) -> bool:
        return bool(self.rules)

    def match(self, asked: Asked) -> tuple[Limit, ...]:
        """Every limit of the request, in the order of SCOPES. Those on batch rows too, which only batch jobs take."""
        found = self._found.get(asked)
        if found is None:
            if len(self._found) >= MAX_REMEMBERED:
                self._found.clear()
                self._limits.clear()
            found = self._found[asked] = tuple(self._look_up(asked))
        return found

    def _look_up(self, asked: Asked) -> list[Limit]:
        found: list[Limit] = []
        for scope in self._scopes:
            name = self._name(scope, asked)
            rules: dict[Unit, Rule] = {**self.rules.get((scope, EVERY), {}), **self.rules.get((scope, name), {})}
            owner = self._owner(scope, asked)
            found += [self._limit(scope, name, owner, unit, rule) for unit, rule in rules.items()]
        return found

    @staticmethod
    def _name(scope: str, asked: Asked) -> str:
        if scope in ("cluster", "node"):
            return ""
        return f"{asked.tenant}/{asked.key_id}" if scope == "key" else str(getattr(asked, scope))

    def _owner(self, scope: str, asked: Asked) -> str:
        """Whose counts, spelt so that no other name can be spelt the same."""
        if scope == "key":
            return f"{encode_token(asked.tenant)}/{encode_token(asked.key_id)}"
        return encode_token(self._node if scope == "node" else self._name(scope, asked))

    def _limit(self, scope: str, name: str, owner: str, unit: Unit, rule: Rule) -> Limit:
        """One and the same object for a name, however many kinds of requests it has a part in."""
        found = self._limits.get((scope, owner, unit))
        if found is None:
            found = self._limits[scope, owner, unit] = Limit(
                scope=scope,  # type: ignore[arg-type]
                name=name,
                unit=unit,
                limit=rule.limit,
                per=rule.per,
                capacity=rule.capacity,
                rate_per_us=rule.rate_per_us,
                configured_at=rule.configured_at,
                key=f"{self._prefix}:limit:{scope}:{unit}:{owner}",
            )
        return found
