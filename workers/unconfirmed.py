"""Replies that may not have reached the broker: kept until it proves that it has them, sent again after a cut. Pure.

A reply written to a connection that then breaks is gone, although its message may be acked later for its other
requests. Our own heartbeat proves: it comes back, so everything written before it has arrived. After a reconnect the
rest is sent once more; gateways ignore the second answer to a request.

Invariants: what was put and not confirmed is taken once, in order; bounded in bytes and number
(tests/unit/test_unconfirmed.py).
"""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_REPLIES: Final = 50_000
"""Beyond these the oldest are forgotten: a heartbeat is overdue then, and the oldest have most likely arrived."""

Reply = tuple[str, bytes]
"""(subject, payload)"""


class Unconfirmed:
    """Replies in the order of their sending, with the heartbeats between them."""

    __slots__ = ("_entries", "_num_beats", "num_bytes")

    def __init__(self) -> None:
        self._entries: deque[Reply | None] = deque()
        self._num_beats = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) - self._num_beats

    def put(self, reply: Reply) -> None:
        """It was written to the connection."""
        self._entries.append(reply)
        self.num_bytes += len(reply[1])
        while self.num_bytes > MAX_BYTES or len(self._entries) - self._num_beats > MAX_REPLIES:
            self._forget_oldest()

    def beat(self) -> None:
        """A heartbeat was written behind them."""
        self._entries.append(None)
        self._num_beats += 1

    def confirm(self) -> None:
        """The oldest heartbeat on its way came back: what was written before it has arrived."""
        num_beats = self._num_beats
        while num_beats and self._num_beats == num_beats:
            self._forget_oldest()

    def take(self) -> list[Reply]:
        """Everything not confirmed, oldest first, to be sent again; nothing is on its way after a cut."""
        replies = [entry for entry in self._entries if entry is not None]
        self._entries.clear()
        self._num_beats = self.num_bytes = 0
        return replies

    def _forget_oldest(self) -> None:
        entry = self._entries.popleft()
        if entry is None:
            self._num_beats -= 1
        else:
            self.num_bytes -= len(entry[1])
