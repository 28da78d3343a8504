"""The reading half of the NATS client protocol: bytes from a socket to callbacks. Writes nothing, keeps no connection.

One scan per message, no copies but the payload itself. A callback that raises is logged; the stream goes on.

Invariants: any cut of the same bytes into reads gives the same callbacks (tests/property/test_wire.py).
Source: NATS client protocol, https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from transport.link import OnRaw

MAX_CONTROL_LINE: Final = 64 * 1024
"""A line without an end beyond this is no NATS. INFO of a large cluster takes some kilobytes."""
MAX_MESSAGE_BYTES: Final = 65 * 1024 * 1024
"""nats-server's own highest max_payload, with room for headers."""

log = structlog.get_logger(__name__)


class BadProtocol(Exception):
    """The peer does not speak NATS."""


class Parser:
    """Gives each message to `routes[sid]`, each other line to `on_control`. Messages of unknown sids are dropped."""

    def __init__(self, routes: dict[bytes, OnRaw], on_control: Callable[[bytes], None]) -> None:
        self._routes = routes
        self._on_control = on_control
        self._rest = b""
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    def reset(self) -> None:
        """Forget a half-read message: the connection it came from is gone."""
        self._rest = b""
        self._chunks = []
        self._need = 0

    def feed(self, data: bytes) -> None:
        """Take what the socket gave.

        Raises:
            BadProtocol: a line or a size that NATS does not have.
        """
        if self._need:
            # In the middle of a large message: collect, join once, scan nothing twice.
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
            self._need = 0
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            at = self._scan(data)
        except (ValueError, IndexError) as e:
            raise BadProtocol(f"unreadable message line: {e}") from None
        if at < len(data) and not self._need:
            if len(data) - at > MAX_CONTROL_LINE:
                raise BadProtocol(f"{len(data) - at} bytes without a line end")
            self._rest = data[at:]

    def _scan(self, data: bytes) -> int:
        """Hand out every whole message; returns where the first incomplete one starts."""
        route_of = self._routes.get
        find = data.find
        at, size = 0, len(data)
        while at < size:
            eol = find(b"\r\n", at)
            if eol < 0:
                break
            kind = data[at]
            if kind == 77:  # "M": MSG subject sid [reply] size
                fields = data[at + 4 : eol].split(b" ")
                body = split = eol + 2
                num_fields = 4
            elif kind == 72:  # "H": HMSG subject sid [reply] header-size size
                fields = data[at + 5 : eol].split(b" ")
                body = eol + 2
                split = body + int(fields[-2])
                num_fields = 5
            else:
                self._on_control(data[at:eol])
                at = eol + 2
                continue
            end = body + int(fields[-1])
            if end + 2 > size or end < split:
                self._hold(data, at, body, end)
                break
            at = end + 2
            route = route_of(fields[1])
            if route is not None:
                reply = fields[2] if len(fields) == num_fields else b""
                try:
                    route(fields[0], reply, data[split:end], data[body:split])
                except Exception:
                    log.exception("callback-failed", subject=fields[0].decode(errors="replace"))
        return at

    def _hold(self, data: bytes, at: int, body: int, end: int) -> None:
        if not body <= end <= body + MAX_MESSAGE_BYTES:
            raise BadProtocol(f"a message of {end - body} bytes")
        self._chunks = [data[at:]]
        self._have = len(data) - at
        self._need = end + 2 - at
