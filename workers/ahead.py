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
EARLIEST: Final = 0.75
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
    """Tells, as executions start and end, how many rows of a model version may be in hand.

    Short executions: as many as the model's window has. Long ones: those that run and what idle instances could start
    at once; late in an execution a micro-batch for every instance.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        num_instances: int,
        max_batch_size: int,
        tell: Callable[[int | None], None],
    ) -> None:
        """`tell(max_rows)`: None where the version sets no limit of its own."""
        self._loop = loop
        self._num_instances = num_instances
        self._slot_rows = max(1, max_batch_size)
        self._tell = tell
        self._ahead = Ahead()
        self._num_busy = 0
        self._running_rows = 0
        self._is_late = False
        self._told: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def started(self, rows: int) -> None:
        """A micro-batch runs: its successor is asked for at once, or late."""
        self._num_busy += 1
        self._running_rows += rows
        pause_s = self._ahead.pause_s
        if pause_s and self._timer is None and not self._is_late:
            self._timer = self._loop.call_later(pause_s, self._late)
        self._say()

    def ended(self, rows: int, took_s: float) -> None:
        """One has run, and its successor starts in the same breath."""
        self._num_busy -= 1
        self._running_rows -= rows
        self._ahead.note(took_s)
        self._is_late = False
        self._stop_timer()
        self._say()

    def close(self) -> None:
        """The version leaves: what it learned counts for nobody else."""
        self._stop_timer()
        if self._told is not None:
            self._tell(None)

    def _late(self) -> None:
        self._timer = None
        self._is_late = True
        self._say()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _say(self) -> None:
        max_rows: int | None = None
        if self._ahead.pause_s:
            slots = self._num_instances if self._is_late else self._num_instances - self._num_busy
            max_rows = self._running_rows + slots * self._slot_rows
        if max_rows != self._told:
            self._told = max_rows
            self._tell(max_rows)
