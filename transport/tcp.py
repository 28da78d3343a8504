"""A TCP or TLS socket for nats-py's client: line by line while it shakes hands, then straight into our parser.

nats-py reads through a stream reader and a task; handing the loop's buffer (256 KB) to the parser saves both for each
read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import ParseResult

from nats.aio.transport import Transport as NatsSocket


class Wire(asyncio.Protocol):
    """What the event loop calls: one per connection."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        self._on_lost = on_lost
        self._feed: Callable[[bytes], None] | None = None
        self._early = bytearray()
        self._more = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The loop's call."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """The loop's call; an exception of the parser ends the connection."""
        if self._feed is not None:
            self._feed(data)
        else:
            self._early += data
            self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The loop's call."""
        del exc
        if not self.closed.done():
            self.closed.set_result(None)
        self._more.set()
        self._writable.set()
        self._on_lost()

    def pause_writing(self) -> None:
        """The loop's call."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The loop's call."""
        self._writable.set()

    def feed(self, feed: Callable[[bytes], None]) -> None:
        """From now on bytes go there, those that came early first."""
        self._feed = feed
        if self._early:
            early = bytes(self._early)
            self._early.clear()
            feed(early)

    async def readline(self) -> bytes:
        """One line, or what there is at the end of the stream."""
        while (end := self._early.find(b"\n")) < 0 and not self.closed.done():
            self._more.clear()
            await self._more.wait()
        end = end + 1 or len(self._early)
        line = bytes(self._early[:end])
        del self._early[:end]
        return line

    async def drain(self) -> None:
        """Wait until the loop's write buffer is small again."""
        await self._writable.wait()


class Socket(NatsSocket):
    """nats-py's view of a connection; reconnecting replaces the wire."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self.wire: Wire | None = None
        self.is_tls = False

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Open a plain connection."""
        del buffer_size  # the loop reads up to 256 KB at a time
        loop = asyncio.get_running_loop()
        self.is_tls = False
        self.wire = None
        async with asyncio.timeout(connect_timeout):
            _, self.wire = await loop.create_connection(lambda: Wire(self._lost), uri.hostname or "", uri.port or 4222)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Turn the plain connection into TLS."""
        del buffer_size
        plain = self._open()
        assert plain.transport is not None
        wire = Wire(self._lost)
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            wire.transport = await asyncio.get_running_loop().start_tls(
                plain.transport, wire, ssl_context, server_hostname=name
            )
        self.wire = wire
        self.is_tls = True

    def write(self, payload: bytes) -> None:
        """Give bytes to the loop."""
        self._open_transport().write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Give bytes to the loop."""
        self._open_transport().writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        """Never called: our read loop feeds the parser."""
        raise NotImplementedError

    async def readline(self) -> bytes:
        """One line of the hand-shake."""
        return await self._open().readline()

    async def drain(self) -> None:
        """Wait until the loop's write buffer is small again."""
        await self._open().drain()

    async def wait_closed(self) -> None:
        """Until the loop has closed it."""
        if self.wire is not None:
            await asyncio.wait([self.wire.closed], timeout=1.0)

    def close(self) -> None:
        """Close what is open."""
        if self.wire is not None and self.wire.transport is not None:
            self.wire.transport.close()

    def at_eof(self) -> bool:
        """Whether the other side has gone."""
        return self.wire is None or self.wire.closed.done()

    def __bool__(self) -> bool:
        return True  # nats-py would otherwise make one of its own

    def _lost(self) -> None:
        if self.at_eof():  # a plain wire under TLS ends twice
            self._on_lost()

    def _open(self) -> Wire:
        if self.wire is None:
            raise ConnectionError("not connected")
        return self.wire

    def _open_transport(self) -> asyncio.Transport:
        transport = self._open().transport
        if transport is None:
            raise ConnectionError("not connected")
        return transport
