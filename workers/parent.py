"""The line to the parent process: settings come as one JSON line on stdin, and its end says that the parent died."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

from pydantic import ValidationError

from workers.settings import WorkerSettings


def read_settings() -> WorkerSettings:
    """The first line of stdin.

    Raises:
        SystemExit: it is missing or says something that is no setting; names it.
    """
    line = sys.stdin.buffer.readline()
    if not line.strip():
        raise SystemExit("settings are expected as one line of JSON on stdin")
    try:
        return WorkerSettings.model_validate_json(line)
    except ValidationError as e:
        raise SystemExit(f"settings on stdin: {e}") from None


def watch_parent(on_gone: Callable[[], None]) -> None:
    """Call `on_gone` in the running loop once stdin ends. The thread that waits for it dies with the process."""
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 4_096):  # unbuffered: a blocked buffer lock is fatal at interpreter shutdown
            pass
        try:
            loop.call_soon_threadsafe(on_gone)
        except RuntimeError:
            return  # the loop has ended first

    threading.Thread(target=wait_for_end, name="parent-watch", daemon=True).start()
