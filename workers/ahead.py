"""When a worker may take rows beyond those that run: at once, or late in an execution that takes long. Asks for none.

Rows that are taken early in a long execution wait for it and then run themselves, though another worker may be idle all
the while; taken shortly before its end, they are there when they are needed.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LONG_S: Final = 0.02
"""From here on waiting for a micro-batch counts; below, the gain would be smaller than what timers and pulls cost."""
EARLIEST: Final = 0.6
"""Share of the expected time after which the next rows are asked for: early enough where executions vary."""
WEIGHT: Final = 0.2
"""Of a longer execution than expected; a shorter one is believed at once."""


class Ahead:
    """What executions of one model version took lately."""

    __slots__ = ("_expected_s",)

    def __init__(self) -> None:
        self._expected_s = 0.0

    def note(self, took_s: float) -> None:
        """One execution more."""
        longer_s = took_s - self._expected_s
        self._expected_s += longer_s * (WEIGHT if longer_s > 0 else 1.0)

    @property
    def pause_s(self) -> float:
        """How long after its start a micro-batch's successor is asked for; 0 where it may be there from the start."""
        return self._expected_s * EARLIEST if self._expected_s >= LONG_S else 0.0


class Reach:
    """Tells, as executions start and end, whether rows beyond those that run may be taken now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[bool], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._ahead = Ahead()
        self._is_far = True
        self._timer: asyncio.TimerHandle | None = None

    def started(self) -> None:
        """A micro-batch runs: its successor is asked for at once, or late."""
        pause_s = self._ahead.pause_s
        if pause_s and self._timer is None:
            self._timer = self._loop.call_later(pause_s, self._set, True)

    def ended(self, took_s: float) -> None:
        """One has run."""
        self._ahead.note(took_s)
        self._set(not self._ahead.pause_s)

    def close(self) -> None:
        """The version leaves: what it learned counts for nobody else."""
        self._set(True)

    def _set(self, is_far: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_far is not self._is_far:
            self._is_far = is_far
            self._tell(is_far)
