"""Compressed bodies in and out of a door without holding up its loop: small ones on the spot, the others in threads.

    compressed body → expand  → step in a thread, count, step, … → resume(plain body, or why not)
    answer          → shrink  → in a thread                      → finish(head, parts)

What is held meanwhile counts as being received, so that many small bodies that grow large are refused together.
Formats and limits are compression.py's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from contract.errors import Cancelled, DeadlineExceeded, HeadraceError, Unavailable
from gateway.http import headers as h
from gateway.http.compression import Inflater, compressed, is_compressible, wanted_coding
from gateway.http.doorway import Doorway
from gateway.oip.encode import EncodedAnswer

INLINE_BYTES: Final = 64 * 1024
"""A body up to this size is done with in the loop: a thread costs as much as a tenth of a millisecond."""
_MIN_COUNTED_BYTES: Final = 1024 * 1024  # a body up to this size is never refused for what others are sending

Plain = bytes | bytearray


class Resumable(Protocol):
    """An exchange that waits for its body, or for its answer to be compressed."""

    disconnected: bool

    def resume(self, body: Plain | HeadraceError) -> None:
        """Go on with the plain body, or refuse."""

    def finish(self, head: bytes, parts: list[bytes | memoryview], num_bytes: int) -> None:
        """Write the answer; `head` ends before content-length."""


def expand(doorway: Doorway, exchange: Resumable, body: Plain, found: h.Found, deadline_s: float) -> None:
    """Decompress an exchange's body and resume it, perhaps before this returns."""
    is_json = h.INFERENCE_LENGTH not in found
    max_bytes = min(doorway.max_request_bytes, doorway.max_json_bytes) if is_json else doorway.max_request_bytes
    inflater = Inflater(h.text(found, h.CONTENT_ENCODING), body, max_bytes)

    def check() -> None:
        if exchange.disconnected:
            raise Cancelled("the caller left")
        if time.monotonic() >= deadline_s:
            raise DeadlineExceeded("the deadline passed while the body was being decompressed")

    async def run() -> None:
        try:
            plain: Plain | HeadraceError = await expanded(doorway, inflater, len(body), check)
        except HeadraceError as e:
            plain = e
        exchange.resume(plain)

    if len(body) <= INLINE_BYTES:
        try:
            inflater.step(INLINE_BYTES)
        except HeadraceError as e:
            exchange.resume(e)
            return
        if inflater.is_complete:
            exchange.resume(inflater.body)
            return
    _start(doorway, run())


async def expanded(
    doorway: Doorway, inflater: Inflater, body_bytes: int, check: Callable[[], None] = lambda: None
) -> bytearray:
    """The plain body; `check` is called between the steps and may raise.

    Raises:
        InvalidInput, TooLarge: see `Inflater.step`.  Unavailable: too much is being received over all connections.
    """
    loop = asyncio.get_running_loop()
    held_bytes = 0
    try:
        while True:
            more = body_bytes + len(inflater.body) - held_bytes
            held_bytes += more
            doorway.receiving_bytes += more
            if doorway.receiving_bytes > doorway.max_receiving_bytes and held_bytes > _MIN_COUNTED_BYTES:
                raise Unavailable(f"bodies of over {doorway.max_receiving_bytes} bytes are being received")
            if inflater.is_complete:
                return inflater.body
            check()
            await loop.run_in_executor(None, inflater.step)
    finally:
        doorway.receiving_bytes -= held_bytes


def shrink(doorway: Doorway, exchange: Resumable, accept_encoding: bytes, head: bytes, answer: EncodedAnswer) -> bool:
    """Compress and finish an exchange's answer, perhaps before this returns; False, and nothing, if it stays plain."""
    coding, is_asked_for = wanted_coding(accept_encoding, answer.num_bytes)
    if not coding or not (is_asked_for or is_compressible(answer.parts)):
        return False

    def finish(parts: list[bytes]) -> None:
        exchange.finish(b"%bcontent-encoding: %b\r\n" % (head, coding.encode()), [*parts], sum(map(len, parts)))

    async def run() -> None:
        finish(await asyncio.get_running_loop().run_in_executor(None, compressed, coding, answer.parts))

    if answer.num_bytes <= INLINE_BYTES:
        finish(compressed(coding, answer.parts))
    else:
        _start(doorway, run())
    return True


def _start(doorway: Doorway, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    doorway.tasks.add(task)
    task.add_done_callback(doorway.tasks.discard)
