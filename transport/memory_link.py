"""A connection into the in-process broker: a `Link` whose other end is an object. Can be cut and paused by tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from transport.base import BrokerTimeout, Disconnected, PayloadOverLimit
from transport.link import PING_TIMEOUT_S, OnRaw, call_safely

if TYPE_CHECKING:
    from transport.memory import MemoryBroker

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Interest:
    """What one link listens to."""

    link: MemoryLink
    pattern: str
    queue: str
    callback: OnRaw
    is_leaving: bool = False


class MemoryLink:
    """A `Link` into a MemoryBroker."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self.name = name
        self.is_up = True
        self.num_reconnects = 0
        self._broker = broker
        self._watchers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._is_paused = False
        self._at_tick_end: list[Callable[[], None]] = []
        self._before_flush: list[Callable[[], None]] = []
        self._is_flush_due = False
        self._unread: list[tuple[Interest, bytes, bytes, bytes, bytes]] = []
        self._pings: set[asyncio.Future[None]] = set()

    @property
    def max_payload(self) -> int:
        """Bytes the broker takes in one message."""
        return self._broker.max_payload

    def watch(self, on_lost: Callable[[], None], on_back: Callable[[], None]) -> None:
        """`on_back` runs when what is listened to is known to the broker again."""
        self._watchers.append((on_lost, on_back))

    def send(self, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> None:
        """Publish."""
        if not self.is_up:
            raise Disconnected("not connected to the broker")
        size = len(payload) + len(header)
        if size > self.max_payload:
            raise PayloadOverLimit(size, self.max_payload)
        self._broker.post(self, subject, bytes(payload), reply, header)

    def at_tick_end(self, call: Callable[[], None]) -> None:
        """Call once, at the end of this tick."""
        self._at_tick_end.append(call)
        self._soon()

    def before_flush(self, call: Callable[[], None]) -> None:
        """Likewise, behind everything of `at_tick_end`."""
        self._before_flush.append(call)
        self._soon()

    def _end_tick(self) -> None:
        """The broker has what was sent; run what waits for the end of the tick."""
        self._is_flush_due = False
        calls, self._at_tick_end = self._at_tick_end, []
        for call in calls:
            call_safely(call)
        calls, self._before_flush = self._before_flush, []
        for call in calls:
            call_safely(call)

    async def listen(self, subject: str, callback: OnRaw, queue: str = "") -> MemoryListening:
        """Subscribe."""
        if not self.is_up:
            raise Disconnected("not connected to the broker")
        interest = Interest(self, subject, queue, callback)
        self._broker.add(interest)
        await self.ping()
        return MemoryListening(self, interest)

    async def ping(self, timeout_s: float = PING_TIMEOUT_S) -> None:
        """A round trip behind all that was sent."""
        if not self.is_up:
            raise Disconnected("not connected to the broker")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings.add(future)
        self._broker.mark(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise BrokerTimeout(f"no pong within {timeout_s:g} s") from None
        finally:
            self._pings.discard(future)

    async def close(self) -> None:
        """Leave."""
        if self.is_up:
            await self.ping()
        self.is_up = False
        self._broker.forget(self)

    def pause(self) -> None:
        """Read no more, like a process that was stopped; what is sent meanwhile waits in its socket."""
        self._is_paused = True

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        unread, self._unread = self._unread, []
        for item in unread:
            self.deliver(*item)

    def deliver(self, interest: Interest, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        """The broker's call."""
        if self._is_paused:
            self._unread.append((interest, subject, reply, payload, header))
            return
        try:
            interest.callback(subject, reply, payload, header)
        except Exception:
            log.exception("callback-failed", subject=subject.decode())

    def leave(self, interest: Interest, *, is_draining: bool) -> None:
        """Nothing more is wanted."""
        interest.is_leaving = True
        if not is_draining:
            self._broker.remove(interest)

    def _soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._end_tick)

    def set_up(self, *, is_up: bool) -> None:
        """The connection is lost or back."""
        if self.is_up == is_up:
            return
        self.is_up = is_up
        if is_up:
            self.num_reconnects += 1
        else:
            self._unread.clear()
            for future in self._pings:
                if not future.done():
                    future.set_exception(Disconnected("the connection to the broker was lost"))
        for on_lost, on_back in self._watchers:
            (on_back if is_up else on_lost)()


class MemoryListening:
    """Interest in a subject."""

    def __init__(self, link: MemoryLink, interest: Interest) -> None:
        self._link = link
        self._interest = interest

    async def unsubscribe(self) -> None:
        """Stop at once."""
        self._link.leave(self._interest, is_draining=False)

    async def drain(self) -> None:
        """Take nothing new, call back for what is on its way."""
        self._link.leave(self._interest, is_draining=True)
        if self._link.is_up:
            await self._link.ping()
        self._link.leave(self._interest, is_draining=False)
