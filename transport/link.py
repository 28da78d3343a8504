"""What this package's own parts need of a connection: send, listen, be told. `client.py` and `memory.py` keep it.

Subjects and headers are bytes here, as they are on the wire: decoding them for each message would cost more than it
tells.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import structlog

OnRaw = Callable[[bytes, bytes, bytes, bytes], None]
"""(subject, reply subject or b"", payload, header block or b"")"""

PING_TIMEOUT_S: Final = 5.0
NO_RESPONDERS: Final = b"503"

log = structlog.get_logger(__name__)


class Listening(Protocol):
    """Interest in a subject."""

    async def unsubscribe(self) -> None:
        """Stop at once: no callback runs afterwards."""

    async def drain(self) -> None:
        """Take nothing new, call back for what is on its way; returns when nothing more can come."""


class Link(Protocol):
    """A connection to a broker."""

    name: str
    is_up: bool
    num_reconnects: int

    @property
    def max_payload(self) -> int:
        """Bytes the broker takes in one message."""

    def watch(self, on_lost: Callable[[], None], on_back: Callable[[], None]) -> None:
        """`on_back` runs when what is listened to is known to the broker again."""

    def send(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publish. All that is sent in one loop tick, or in one read's callbacks, leaves in one write.

        Raises Disconnected, PayloadOverLimit.
        """

    def at_tick_end(self, call: Callable[[], None]) -> None:
        """Call once, when this read is handed out or else at the end of this tick; what it sends goes with the rest."""

    def before_flush(self, call: Callable[[], None]) -> None:
        """Likewise, behind everything of `at_tick_end`."""

    async def listen(self, subject: str, callback: OnRaw, queue: str = "") -> Listening:
        """Returns once the broker knows. Raises Disconnected, BrokerTimeout."""

    async def ping(self, timeout_s: float = PING_TIMEOUT_S) -> None:
        """Wait until the broker has seen all that was sent, and we all that it sent before. Raises as `listen`."""

    async def close(self) -> None:
        """Send what waits, then go."""


def call_safely(callback: Callable[..., None], *args: object) -> None:
    """Call what another part gave us: its exception is logged and stops nobody else."""
    try:
        callback(*args)
    except Exception:
        log.exception("callback-failed", callback=getattr(callback, "__qualname__", repr(callback)))


@lru_cache(maxsize=4096)
def encode_subject(subject: str) -> bytes:
    """A subject as bytes.

    Raises:
        ValueError: it is empty or holds white space or a control character, which would be read as protocol.
    """
    if not subject or " " in subject or not subject.isprintable():
        raise ValueError(f"{subject!r} is no subject")
    return subject.encode()


def status_of(header: bytes) -> bytes:
    """The three digits of a status header, b"" for a header without one."""
    return header[9:12] if header[8:9] == b" " else b""


def header_field(header: bytes, name: bytes) -> bytes:
    """Value of a header field, b"" if it is not there."""
    start = header.find(b"\r\n" + name + b":")
    if start < 0:
        return b""
    start += len(name) + 3
    return header[start : header.find(b"\r\n", start)].strip()
