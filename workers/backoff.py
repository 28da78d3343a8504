"""How long to wait before something that failed is tried again. Pure."""

from __future__ import annotations

from typing import Final

MAX_BACKOFF_S: Final = 30.0
HEALTHY_AFTER_S: Final = 30.0
"""What lived this long is healthy: the next failure starts from the shortest pause again."""


class Backoff:
    """Pauses that double from `first_s` up to 30 s."""

    __slots__ = ("_first_s", "_max_s", "_next_s")

    def __init__(self, first_s: float, max_s: float = MAX_BACKOFF_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def pause_s(self, lived_s: float = 0.0) -> float:
        """The pause after a failure that came after `lived_s` of life."""
        if lived_s >= HEALTHY_AFTER_S:
            self._next_s = self._first_s
        pause_s = min(self._next_s, self._max_s)
        self._next_s = min(self._next_s * 2, self._max_s)
        return pause_s
