"""NATS headers, for the one place that speaks with clients: blocks to pairs and back. Nothing of ours inside uses them.

A header block is `NATS/1.0`, a line per field, an empty line. Names come out in lower case; values as they are.

Source: NATS client protocol, HPUB and HMSG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from transport.base import Subscription, Transport

Pairs = list[tuple[bytes, bytes]]
"""(lower-case name, value), in order; a name may come twice."""
OnHeaded = Callable[[str, str, bytes, Pairs], None]
"""(subject, reply subject or "", payload, headers)"""

_VERSION: Final = b"NATS/1.0"


class HeadedTransport(Transport, Protocol):
    """A transport that can also send and hear NATS headers."""

    async def subscribe_with_headers(self, subject: str, callback: OnHeaded, queue: str = "") -> Subscription:
        """Like `subscribe`."""

    def publish_with_headers(self, subject: str, payload: bytes, headers: Iterable[tuple[str, str]]) -> None:
        """Like `publish`; the headers count for PayloadOverLimit. Raises ValueError where a field holds a line end."""


def parse_headers(block: bytes) -> Pairs:
    """The fields of a block; lines that are none are left out."""
    fields: Pairs = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            fields.append((name.strip().lower(), value.strip()))
    return fields


def format_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """A block of these fields.

    Raises:
        ValueError: a name or a value holds a line end or a null, or a name is empty or holds a colon.
    """
    lines = [_VERSION]
    for name, value in headers:
        if not name or ":" in name or any(c in name or c in value for c in "\r\n\0"):
            raise ValueError(f"{name!r}: {value!r} is no header field")
        lines.append(f"{name}: {value}".encode())
    return b"\r\n".join((*lines, b"", b""))
