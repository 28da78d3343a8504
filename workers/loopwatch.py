"""Ends this process when its event loop hangs for good, so that its pool starts another. Judges by ticks, not clocks.

A tiny model that runs in the loop and does not return stops everything here: heartbeats, acks, control. Others have
taken the work over by then; only a new process can serve again. A process that is stopped (SIGSTOP) stops counting
too: both sides of the comparison stand still.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

TICK_S: Final = 0.5
EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h."""

log = structlog.get_logger()


def watch_loop(
    max_silent_s: Callable[[], float], *, exit_process: Callable[[int], None] = os._exit
) -> Callable[[], None]:
    """Watch the running loop until the returned function is called; `max_silent_s` is asked anew each tick."""
    loop = asyncio.get_running_loop()
    ended = threading.Event()
    beats = [0]

    def beat() -> None:
        beats[0] += 1

    def watch() -> None:
        num_missed, seen = 0, -1
        while not ended.is_set():
            try:
                loop.call_soon_threadsafe(beat)
            except RuntimeError:
                return  # the loop has ended
            time.sleep(TICK_S)
            num_missed = 0 if beats[0] != seen else num_missed + 1
            seen = beats[0]
            if num_missed * TICK_S > max_silent_s() and not ended.is_set():
                log.critical("event-loop-hangs", after_s=num_missed * TICK_S, exit_code=EXIT_CODE)
                exit_process(EXIT_CODE)
                return

    threading.Thread(target=watch, name="loop-watch", daemon=True).start()
    return ended.set
