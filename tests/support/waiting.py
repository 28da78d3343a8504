"""Waiting for what a test expects, with generous limits and without guessing how long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

WITHIN_S = 15.0


async def until(claim: Callable[[], Any], within_s: float = WITHIN_S) -> None:
    """Return once `claim()` is true; fail when it has not become so in time."""
    end_s = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < end_s, "it never came true"
        await asyncio.sleep(0.005)


class Inbox(list[Any]):
    """A list that can be waited for."""

    async def has(self, count: int, within_s: float = WITHIN_S) -> None:
        await until(lambda: len(self) >= count, within_s)
