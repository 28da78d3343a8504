"""The in-process twin of nats-server: subjects, queue groups, "no responders", and the part of JetStream's API in use.

Transports made here run the very code that talks to a real broker, over `MemoryLink` instead of a socket: lanes,
credits, acks and fences are not imitated. Tests take the broker away (`disconnect`), let it forget (`lose_streams`),
stop a reader (`MemoryLink.pause`) or move its clock (`advance`). Not kept: replicas, files, permissions.

    broker = MemoryBroker();  gateway = await broker.connect("gateway");  worker = await broker.connect("worker")
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from transport.memory_api import MemoryApi
from transport.memory_link import Interest, MemoryLink
from transport.memory_streams import matches
from transport.nats_transport import NatsTransport

TICK_S: Final = 0.02
MAX_PAYLOAD: Final = 1024 * 1024


class MemoryBroker:
    """One broker, for as many transports as connect to it, all in one event loop."""

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic, max_payload: int = MAX_PAYLOAD) -> None:
        self.max_payload = max_payload
        self._clock_s = now_s
        self._ahead_s = 0.0
        self._unix_offset_s = time.time() - now_s()
        self._interests: list[Interest] = []
        self._exact: dict[str, list[Interest]] = {}
        self._inbox: deque[tuple[MemoryLink, bytes, bytes, bytes, bytes] | asyncio.Future[None]] = deque()
        self._is_due = False
        self._turn = itertools.count()
        self._links: list[MemoryLink] = []
        self._timer: asyncio.TimerHandle | None = None
        self.api = MemoryApi(self.now_s, self._unix_offset_s, self._send)

    def now_s(self) -> float:
        """The broker's clock."""
        return self._clock_s() + self._ahead_s

    async def connect(self, name: str, *, now_s: Callable[[], float] = time.monotonic) -> NatsTransport:
        """A new transport on this broker."""
        link = MemoryLink(self, name)
        self._links.append(link)
        if self._timer is None:
            self._tick()
        transport = NatsTransport(link, now_s=now_s)
        await transport.start()
        return transport

    # ---------------------------------------------------------------- faults
    def disconnect(self, transport: NatsTransport) -> None:
        """Cut one connection; it stays cut until `reconnect`."""
        self._link_of(transport).set_up(is_up=False)

    def reconnect(self, transport: NatsTransport) -> None:
        """Let it back in."""
        self._link_of(transport).set_up(is_up=True)

    def lose_streams(self) -> None:
        """Forget every stream, as a restart does with those in memory."""
        self.api.lose_streams()

    def restart(self) -> None:
        """Cut everybody, forget the streams, let everybody back in."""
        links = [link for link in self._links if link.is_up]
        for link in links:
            link.set_up(is_up=False)
        self.lose_streams()
        for link in links:
            link.set_up(is_up=True)

    def advance(self, seconds: float) -> None:
        """Move the broker's clock: what expires meanwhile expires now."""
        self._ahead_s += seconds
        self.api.tick()

    # ---------------------------------------------------------------- for links
    def post(self, link: MemoryLink, subject: bytes, payload: bytes, reply: bytes, header: bytes) -> None:
        """Take a message; it is worked on in the next loop tick, in order."""
        self._inbox.append((link, subject, payload, reply, header))
        self._soon()

    def mark(self, future: asyncio.Future[None]) -> None:
        """Set `future` when all that was posted before is worked on."""
        self._inbox.append(future)
        self._soon()

    def add(self, interest: Interest) -> None:
        """Subscribe."""
        if "*" in interest.pattern or ">" in interest.pattern:
            self._interests.append(interest)
        else:
            self._exact.setdefault(interest.pattern, []).append(interest)

    def remove(self, interest: Interest) -> None:
        """Unsubscribe."""
        if interest in self._interests:
            self._interests.remove(interest)
        found = self._exact.get(interest.pattern, [])
        if interest in found:
            found.remove(interest)
            if not found:
                del self._exact[interest.pattern]

    def forget(self, link: MemoryLink) -> None:
        """A link closed."""
        for interest in [i for i in (*self._interests, *itertools.chain(*self._exact.values())) if i.link is link]:
            self.remove(interest)
        if link in self._links:
            self._links.remove(link)
        if not self._links and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------- inside
    def _link_of(self, transport: NatsTransport) -> MemoryLink:
        return next(link for link in self._links if link is transport.link)

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._is_due = False
        for _ in range(len(self._inbox)):  # what is posted meanwhile has its turn in the next tick
            item = self._inbox.popleft()
            if isinstance(item, asyncio.Future):
                if not item.done():
                    item.set_result(None)
                continue
            link, subject, payload, reply, header = item
            if link.is_up:
                self._route(subject, payload, reply, header)

    def _route(self, subject: bytes, payload: bytes, reply: bytes, header: bytes) -> None:
        if subject == b"$SYS.REQ.USER.INFO":
            now = datetime.fromtimestamp(self.now_s() + self._unix_offset_s, UTC).isoformat()
            self._send(reply, reply, b"", f'{{"server":{{"time":"{now}"}}}}'.encode(), b"")
            return
        if self.api.handle(subject, payload, reply):
            return
        was_heard = self._send(subject, subject, reply, payload, header)
        was_stored = self.api.publish(subject, payload, reply)
        if reply and not was_heard and not was_stored:
            self._send(reply, reply, b"", b"", b"NATS/1.0 503\r\n\r\n")

    def _send(self, to: bytes, shown: bytes, reply: bytes, payload: bytes, header: bytes) -> bool:
        subject = to.decode()
        found = [i for i in self._exact.get(subject, ()) if i.link.is_up and not i.is_leaving]
        found += [i for i in self._interests if i.link.is_up and not i.is_leaving and matches(i.pattern, subject)]
        chosen = [i for i in found if not i.queue]
        for queue in {i.queue for i in found if i.queue}:
            members = [i for i in found if i.queue == queue]
            chosen.append(members[next(self._turn) % len(members)])
        for interest in chosen:
            interest.link.deliver(interest, shown, reply, payload, header)
        return bool(chosen)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.api.tick()
