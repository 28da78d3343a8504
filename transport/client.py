"""nats-py's client with its own reading and writing halves: a `Link` on a real broker.

nats-py keeps connecting, TLS, authentication, the server list, reconnecting and subscribing again. Replaced are the
parser (`wire.py`), the socket (`tcp.py`), publishing (synchronous, one write per loop tick) and dispatch (by sid,
synchronous). Nothing is buffered while there is no connection: nats-py would flush it into a stream that no longer
exists.

Source: docs/decisions/0001-pull-with-credits.md; nats-py 2.16 `nats/aio/client.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription as NatsSubscription

from transport.base import BrokerTimeout, Disconnected, PayloadOverLimit
from transport.link import PING_TIMEOUT_S, OnRaw, call_safely
from transport.listening import Listening
from transport.tcp import Socket
from transport.wire import BadProtocol, Parser

MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024
"""The broker does not read: beyond this it counts as away."""
JOIN_BELOW_BYTES: Final = 64 * 1024
"""Smaller writes are joined into one buffer, larger ones handed over as they are."""
TICK_END_ROUNDS: Final = 2
"""What executed at the end of a tick may still send its results; whoever asks again lets others have their turn."""

log = structlog.get_logger(__name__)


class FastClient(Client):
    """One connection to nats-server."""

    def __init__(self, name: str, *, must_be_tls: bool) -> None:
        super().__init__()
        self.name = name
        self.is_up = False
        self.num_reconnects = 0
        self._must_be_tls = must_be_tls
        self._is_closing = False
        self._watchers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._routes: dict[bytes, OnRaw] = {}
        self._socket = Socket(self._lost)
        self._transport = self._socket
        self._parser = Parser(self._routes, self._on_control)
        self._ps = self._parser  # type: ignore[assignment]  # nats-py resets it before it reconnects
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._at_tick_end: list[Callable[[], None]] = []
        self._before_flush: list[Callable[[], None]] = []
        self._is_flush_due = False
        self._is_reading = False
        self._own_pings: set[asyncio.Future[Any]] = set()
        self._info_tasks: set[asyncio.Task[None]] = set()

    @property
    def max_payload(self) -> int:
        """Bytes the broker takes in one message."""
        return self._max_payload

    def watch(self, on_lost: Callable[[], None], on_back: Callable[[], None]) -> None:
        """`on_back` runs when what is listened to is known to the broker again."""
        self._watchers.append((on_lost, on_back))

    def connected(self) -> None:
        """The first connection stands."""
        self.is_up = True

    # ---------------------------------------------------------------- out
    def send(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publish."""
        if not self.is_up:
            raise Disconnected("not connected to the broker")
        size = len(payload) + len(header)
        if size > self._max_payload:
            raise PayloadOverLimit(size, self._max_payload)
        if self._out_bytes > MAX_UNSENT_BYTES:
            self._write_out()  # counts again what the kernel has not taken
            if self._out_bytes > MAX_UNSENT_BYTES:
                raise Disconnected("the broker does not read")
        if header:
            self._out += (b"HPUB %b %b %d %d\r\n%b" % (subject, reply, len(header), size, header), payload, b"\r\n")
        elif size < 4096:
            self._out.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, payload))
        else:
            self._out += (b"PUB %b %b %d\r\n" % (subject, reply, size), payload, b"\r\n")
        self._out_bytes += size
        if not self._is_flush_due:
            self._flush_soon()

    def at_tick_end(self, call: Callable[[], None]) -> None:
        """Call once, when this read is handed out or else at the end of this tick; what it sends goes with the rest."""
        self._at_tick_end.append(call)
        if not self._is_flush_due:
            self._flush_soon()

    def before_flush(self, call: Callable[[], None]) -> None:
        """Likewise, behind everything of `at_tick_end`."""
        self._before_flush.append(call)
        if not self._is_flush_due:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flush_due = True
        if not self._is_reading:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        for _ in range(TICK_END_ROUNDS):
            if not self._at_tick_end:
                break
            calls, self._at_tick_end = self._at_tick_end, []
            for call in calls:
                call_safely(call)
        calls, self._before_flush = self._before_flush, []
        for call in calls:
            call_safely(call)
        self._is_flush_due = False
        if self._at_tick_end or self._before_flush:
            self._flush_soon()
        self._write_out()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        wire = self._socket.wire
        if not out or not self.is_up or wire is None or wire.transport is None:
            return
        if size < JOIN_BELOW_BYTES:
            wire.transport.write(b"".join(out))
        else:
            wire.transport.writelines(out)
        # What the kernel did not take counts as unsent until the next flush looks again.
        self._out_bytes = wire.transport.get_write_buffer_size() if size else 0

    def _write_now(self, command: bytes) -> None:
        """In order with what was sent before."""
        self._write_out()
        with contextlib.suppress(ConnectionError):
            self._socket.write(command)

    # ---------------------------------------------------------------- in
    async def listen(self, subject: str, callback: OnRaw, queue: str = "") -> Listening:
        """Subscribe; returns once the broker knows."""
        if not self.is_up:
            raise Disconnected("not connected to the broker")
        self._sid += 1
        # Registered with nats-py too: it subscribes again after a reconnect.
        self._subs[self._sid] = NatsSubscription(self, self._sid, subject, queue=queue)
        self._routes[b"%d" % self._sid] = callback
        listening = Listening(self, self._sid)
        self._write_now(f"SUB {subject} {queue} {self._sid}\r\n".encode())
        try:
            await self.ping()
        except (Disconnected, BrokerTimeout):
            await listening.unsubscribe()
            raise
        return listening

    def leave(self, sid: int) -> None:
        """Tell the broker that nothing more is wanted; what it has sent already is still called back."""
        if self._subs.pop(sid, None) is not None and self.is_up:
            self._write_now(b"UNSUB %d\r\n" % sid)

    def forget(self, sid: int) -> None:
        """Call back no more."""
        self._routes.pop(b"%d" % sid, None)

    async def ping(self, timeout_s: float = PING_TIMEOUT_S) -> None:
        """A round trip behind all that was sent."""
        if not self.is_connected:
            raise Disconnected("not connected to the broker")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._own_pings.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_ping(future)
                await future
        except TimeoutError:
            raise BrokerTimeout(f"no pong within {timeout_s:g} s") from None
        finally:
            self._own_pings.discard(future)

    def _take(self, data: bytes) -> None:
        """One read; what its callbacks sent leaves at its end, because a turn of the loop costs more than a message."""
        self._is_reading = True
        try:
            self._parser.feed(data)
        finally:
            self._is_reading = False
            if self._is_flush_due:
                self._flush()

    def _on_control(self, line: bytes) -> None:
        if line == b"PING":
            self._write_now(b"PONG\r\n")
        elif line == b"PONG":
            self._pings_outstanding = 0
            future = self._pongs.pop(0) if self._pongs else None
            if future is not None and not future.done():
                future.set_result(None)
        elif line.startswith(b"INFO"):
            info = json.loads(line[5:])
            self._max_payload = int(info.get("max_payload", self._max_payload))
            self._run(self._process_info(info))
        elif line.startswith(b"-ERR"):
            self._run(self._process_err(line[5:].decode(errors="replace").lower()))

    def _run(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._info_tasks.add(task)
        task.add_done_callback(self._info_tasks.discard)

    # ---------------------------------------------------------------- the connection's life
    def _lost(self) -> None:
        was_up, self.is_up = self.is_up, False
        self._out = []
        self._out_bytes = 0
        for future in self._own_pings:
            if not future.done():
                future.set_exception(Disconnected("the connection to the broker was lost"))
        if was_up and not self._is_closing:
            log.warning("broker-lost", name=self.name)
            for on_lost, _ in self._watchers:
                on_lost()

    async def back(self) -> None:
        """nats-py's `reconnected_cb`: subscriptions have been sent and a pong has come."""
        self.is_up = True
        self.num_reconnects += 1
        log.info("broker-back", name=self.name, num_reconnects=self.num_reconnects)
        for _, on_back in self._watchers:
            on_back()

    async def close(self) -> None:
        """Send what waits, then go."""
        self._is_closing = True
        self._flush()
        self.is_up = False
        await super().close()

    # ---------------------------------------------------------------- nats-py's own halves, replaced
    async def _read_loop(self) -> None:
        wire = self._socket.wire
        if wire is None:
            return
        try:
            wire.feed(self._take)
        except BadProtocol as e:
            log.error("broker-speaks-no-nats", error=str(e))
            self._socket.close()
        await asyncio.wait([wire.closed])
        await self._process_op_err(errors.UnexpectedEOF())

    async def _flusher(self) -> None:
        return

    async def _flush_pending(self, force_flush: bool = False) -> None:
        del force_flush
        self._flush()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        del priority
        self._write_now(cmd)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        self._write_now(b"PING\r\n")

    async def flush(self, timeout: float = PING_TIMEOUT_S) -> None:  # noqa: ASYNC109 - nats-py's signature
        """nats-py calls this after it subscribed again."""
        try:
            await self.ping(timeout)
        except (Disconnected, BrokerTimeout) as e:
            raise errors.Error(str(e)) from None

    async def _process_err(self, err_msg: str) -> None:
        """nats-py would close for good on most of these; we come back."""
        log.error("broker-error", name=self.name, error=err_msg)
        if "permissions violation" not in err_msg:
            await self._process_op_err(errors.Error(err_msg))

    def _connect_command(self) -> bytes:
        if self._must_be_tls and not self._socket.is_tls:
            raise errors.Error("TLS is configured, but the broker does not offer it")
        return super()._connect_command()
