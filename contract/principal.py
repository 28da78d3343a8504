"""Who asks: tenant, key, roles, highest lane. The same type behind every door; checks nothing itself."""

from __future__ import annotations

from typing import Literal

import msgspec

from contract.subjects import Lane

Role = Literal["infer", "batch", "admin"]


class Principal(msgspec.Struct, frozen=True):
    """The caller an accepted request belongs to. It comes from the key, never from the request's body."""

    tenant: str
    key_id: str
    roles: frozenset[Role] = frozenset({"infer", "batch"})
    highest_lane: Lane = "norm"
    default_service: str = ""
    models: frozenset[str] | None = None
    """Names it may ask for; None is all."""

    def may_use(self, model: str) -> bool:
        """Whether the model is among those of this key."""
        return self.models is None or model in self.models

    def lane(self, priority: int) -> Lane:
        """Lane of a request with Triton's `priority` (1 highest, 0 not given): it may lower the key's, not raise it."""
        return "norm" if priority > 1 else self.highest_lane


DEFAULT_PRINCIPAL = Principal("default", "none", frozenset({"infer", "batch", "admin"}))
"""Every caller, where no tenants file is configured; the doors are bound to loopback then."""
