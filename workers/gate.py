"""Who may execute now: any number of micro-batches, or one suspect alone. Pure bookkeeping, no tasks of its own.

A redelivered request may be the one that kills processes. While it runs nothing else does, so that nobody else is
running when the process dies, and a note "started" about it can only be about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Gate:
    """One per worker process."""

    __slots__ = ("_idle", "_is_alone", "_is_wanted", "_on_open", "num_running")

    def __init__(self) -> None:
        self.num_running = 0
        self._is_wanted = False
        self._is_alone = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._on_open: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether a micro-batch may start."""
        return not (self._is_wanted or self._is_alone)

    def on_open(self, callback: Callable[[], None]) -> None:
        """Call it each time micro-batches may start again."""
        self._on_open.append(callback)

    def off_open(self, callback: Callable[[], None]) -> None:
        """Call it no more."""
        if callback in self._on_open:
            self._on_open.remove(callback)

    def enter(self) -> None:
        """An execution starts."""
        self.num_running += 1
        self._idle.clear()

    def leave(self) -> None:
        """An execution ended, or nobody waits for it any more."""
        self.num_running -= 1
        assert self.num_running >= 0, "more executions ended than started"
        if self.num_running == 0:
            self._idle.set()

    async def close(self) -> None:
        """Let nothing start and wait until nothing runs; bounded by the models' `max_execution_s`."""
        assert self.is_open, "one suspect at a time"
        self._is_wanted = True
        try:
            await self._idle.wait()
            self._is_alone = True
        finally:
            self._is_wanted = False
            if not self._is_alone:
                self._tell()

    def open(self) -> None:
        """The suspect is done."""
        self._is_alone = False
        self._tell()

    def _tell(self) -> None:
        for callback in list(self._on_open):
            callback()
