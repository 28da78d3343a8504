"""A part of a running whole: its process, and another one when it dies. Says nothing; knows no order between parts.

Invariant: a part that dies MAX_DEATHS times within DEATHS_WITHIN_S is not started again (tests/unit/test_parts.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.children import Child
from workers.backoff import Backoff

FIRST_PAUSE_S: Final = 0.5
MAX_DEATHS: Final = 5
DEATHS_WITHIN_S: Final = 60.0


class Deaths:
    """When one part died, and how long to wait before it is started again."""

    __slots__ = ("_at_s", "_backoff")

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=MAX_DEATHS)
        self._backoff = Backoff(FIRST_PAUSE_S)

    def pause_s(self, now_s: float, lived_s: float) -> float | None:
        """Note a death; the pause before the next start, None if it died too often."""
        self._at_s.append(now_s)
        if len(self._at_s) == MAX_DEATHS and now_s - self._at_s[0] <= DEATHS_WITHIN_S:
            return None
        return self._backoff.pause_s(lived_s)


class Part:
    """How a part is started, and the process that is it now."""

    def __init__(self, start: Callable[[], Awaitable[Child]], child: Child) -> None:
        self._start = start
        self._deaths = Deaths()
        self._started_s = time.monotonic()
        self.child = child

    @property
    def name(self) -> str:
        """Its name, the same in every life."""
        return self.child.name

    async def keep(self, on_revived: Callable[[Part, str], None]) -> str:
        """Start it again whenever it dies, and tell how it had died; returns, with how, once it died too often."""
        while True:  # ends by the caller's cancel or by too many deaths
            code = await asyncio.shield(self.child.ended)
            now_s = time.monotonic()
            pause_s = self._deaths.pause_s(now_s, now_s - self._started_s)
            if pause_s is None:
                return f"{how_it_ended(code)}, {MAX_DEATHS} times within {DEATHS_WITHIN_S:.0f} s"
            # A killed pool's workers finish what they run meanwhile; what takes longer is delivered to the next ones.
            await asyncio.sleep(pause_s)
            self.child.kill()
            self.child = await self._start()
            self._started_s = time.monotonic()
            on_revived(self, how_it_ended(code))


async def start_part(start: Callable[[], Awaitable[Child]]) -> Part:
    """A part in its first life."""
    return Part(start, await start())


def how_it_ended(code: int) -> str:
    """For people: an exit code as `wait` gives it."""
    return f"died with signal {-code}" if code < 0 else f"ended with code {code}"
