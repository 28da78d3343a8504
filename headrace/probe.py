"""Short looks at a port or a health route, with a time-out each. Waits for nothing longer than told."""

from __future__ import annotations

import asyncio
import contextlib
import time

POLL_S = 0.02


async def is_listening(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Whether somebody accepts connections there."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def get_status(host: str, port: int, path: str, timeout_s: float = 1.0) -> int:
    """HTTP status of a GET, 0 if there was no answer."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                line = await reader.readline()
            finally:
                writer.close()
        return int(line.split()[1])
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0


async def wait_listening(host: str, port: int, timeout_s: float) -> bool:
    """Wait until somebody accepts connections there; False when `timeout_s` passed first."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if await is_listening(host, port):
            return True
        await asyncio.sleep(POLL_S)
    return False


async def wait_status(host: str, port: int, path: str, wanted: int) -> None:
    """Wait until a GET has this status; ends by the caller's time-out."""
    while await get_status(host, port, path) != wanted:  # noqa: ASYNC110 - another process answers, there is no event
        await asyncio.sleep(POLL_S)
