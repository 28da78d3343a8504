"""Tells workers what nobody waits for any more: one message per group and tick, kept until the deadlines pass.

A worker that starts asks for the open ones before its first pull. Ends no request itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from contract.envelope import pack
from contract.messages import CancelMessage
from contract.subjects import cancel_subject
from gateway.inflight import Entry
from transport.base import Disconnected, Transport

MAX_KEPT: Final = 50_000
"""Open cancels kept per group, the oldest go first: with 9 bytes each, one message holds them all."""


class Cancels:
    """The cancels of one gateway."""

    def __init__(self, transport: Transport, gateway: str, monotonic: Callable[[], float]) -> None:
        self._transport = transport
        self._gateway = gateway
        self._monotonic = monotonic
        self._kept: dict[str, dict[int, float]] = {}
        """Per group: request id to deadline, in the order they were cancelled."""
        self._untold: dict[str, list[int]] = {}
        self.num_cancelled = 0

    def add(self, entry: Entry) -> None:
        """Tell the entry's group at the end of this tick."""
        group = entry.lane.address.group
        kept = self._kept.setdefault(group, {})
        while len(kept) >= MAX_KEPT:
            del kept[next(iter(kept))]
        kept[entry.id] = entry.request.deadline_s
        if not self._untold:
            asyncio.get_running_loop().call_soon(self.flush)
        self._untold.setdefault(group, []).append(entry.id)
        self.num_cancelled += 1

    def flush(self) -> None:
        """Tell what was added since; while the broker is away, `tell_again` will."""
        untold, self._untold = self._untold, {}
        for group, ids in untold.items():
            self._publish(group, ids[-MAX_KEPT:])

    def tell_again(self) -> None:
        """The broker was away: everything still open goes out once more."""
        for group in list(self._kept):
            ids = self._open(group)
            if ids:
                self._publish(group, ids)

    def open_message(self, group: str) -> bytes:
        """What a starting worker is told."""
        return self._pack(group, self._open(group))

    def _open(self, group: str) -> list[int]:
        now_s = self._monotonic()
        kept = {number: until for number, until in self._kept.get(group, {}).items() if until > now_s}
        if kept:
            self._kept[group] = kept
        else:
            self._kept.pop(group, None)
        return list(kept)

    def _pack(self, group: str, ids: list[int]) -> bytes:
        kept = self._kept.get(group, {})
        until_s = max((kept[number] for number in ids if number in kept), default=self._monotonic())
        return pack(CancelMessage(self._gateway, ids, self._transport.clock.to_wire_ms(until_s)))

    def _publish(self, group: str, ids: list[int]) -> None:
        try:
            self._transport.publish(cancel_subject(group), self._pack(group, ids))
        except Disconnected:
            return
