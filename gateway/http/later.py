"""Requests that are answered later: what runs, what is kept for its caller, what is gone. Decides only.

    open → running → finish → kept → (time, or room for others) → gone → forgotten
              ↘ remove ─────────────────────────────────────────↗

Invariants: never more than `max_requests` entries and `max_bytes` of answers; one tenant's answers make room before
another's that holds less; another tenant's id reads like one that never was (tests/property/test_later.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from typing import Final

from contract.errors import NotFound, Unavailable

GONE_S: Final = 3600.0
"""How long it is remembered that an id was there once."""
ID_BYTES: Final = 18
"""Random bytes of an id: nobody guesses another caller's."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Running:
    """The request has no answer yet."""


class Gone:
    """There was an answer, or there will be none: it was fetched in time or not at all, or deleted."""


RUNNING: Final = Running()
GONE: Final = Gone()
State = Running | Gone | KeptAnswer


@dataclass(slots=True)
class _Shelf:
    """What one tenant has."""

    running: set[str] = field(default_factory=set)
    kept: OrderedDict[str, tuple[KeptAnswer, float]] = field(default_factory=OrderedDict)
    """Answers and when they came, the oldest first."""
    num_bytes: int = 0

    @property
    def num_entries(self) -> int:
        return len(self.running) + len(self.kept)


class Later:
    """All tenants' requests that are answered later."""

    def __init__(self, max_requests: int, max_bytes: int, keep_s: float) -> None:
        self.max_bytes = max_bytes
        self._max_requests = max_requests
        self._keep_s = keep_s
        self._shelves: dict[str, _Shelf] = {}
        self._gone: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self.num_entries = 0
        self.num_bytes = 0

    def open(self, tenant: str, now_s: float) -> str:
        """A new running request's id. Raises Unavailable where as many run as there may be."""
        self.sweep(now_s)
        if self.num_entries >= self._max_requests and not self._make_room(now_s, lambda shelf: shelf.num_entries):
            raise Unavailable(f"{self._max_requests} requests that are to be answered later are running")
        request_id = token_urlsafe(ID_BYTES)
        self._shelves.setdefault(tenant, _Shelf()).running.add(request_id)
        self.num_entries += 1
        return request_id

    def finish(self, tenant: str, request_id: str, answer: KeptAnswer, now_s: float) -> None:
        """Its answer is there; one that was removed meanwhile is not kept."""
        shelf = self._shelves.get(tenant)
        if shelf is None or request_id not in shelf.running:
            return
        shelf.running.discard(request_id)
        shelf.kept[request_id] = (answer, now_s)
        shelf.num_bytes += len(answer.body)
        self.num_bytes += len(answer.body)
        while self.num_bytes > self.max_bytes and self._make_room(now_s, lambda shelf: shelf.num_bytes):
            pass

    def find(self, tenant: str, request_id: str, now_s: float) -> State:
        """How it stands with a request of this tenant's. Raises NotFound."""
        self.sweep(now_s)
        shelf = self._shelves.get(tenant)
        if shelf is not None and request_id in shelf.running:
            return RUNNING
        if shelf is not None and request_id in shelf.kept:
            return shelf.kept[request_id][0]
        if self._gone.get(request_id, ("", 0.0))[0] == tenant:
            return GONE
        raise NotFound(f"this gateway has no request {request_id[:64]!r} of yours")

    def remove(self, tenant: str, request_id: str, now_s: float) -> None:
        """Nobody wants its answer any more."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return
        if request_id in shelf.running:
            shelf.running.discard(request_id)
        elif request_id in shelf.kept:
            answer, _ = shelf.kept.pop(request_id)
            shelf.num_bytes -= len(answer.body)
            self.num_bytes -= len(answer.body)
        else:
            return
        self.num_entries -= 1
        if not shelf.num_entries:
            del self._shelves[tenant]
        self._gone[request_id] = (tenant, now_s)
        if len(self._gone) > self._max_requests:
            self._gone.popitem(last=False)

    def sweep(self, now_s: float) -> None:
        """Let go of what was kept long enough."""
        for tenant, shelf in list(self._shelves.items()):
            while shelf.kept:
                request_id, (_, done_s) = next(iter(shelf.kept.items()))
                if now_s - done_s < self._keep_s:
                    break
                self.remove(tenant, request_id, now_s)
        while self._gone and now_s - next(iter(self._gone.values()))[1] >= GONE_S:
            self._gone.popitem(last=False)

    def _make_room(self, now_s: float, weight: Callable[[_Shelf], int]) -> bool:
        """Let go of the oldest answer of the tenant that takes most room; False where no answer is kept."""
        holders = [(weight(shelf), tenant) for tenant, shelf in self._shelves.items() if shelf.kept]
        if not holders:
            return False
        tenant = max(holders)[1]
        self.remove(tenant, next(iter(self._shelves[tenant].kept)), now_s)
        return True
