"""Transports for a test, in process or over nats-server, and the same faults for both."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Protocol

from tests.support.broker import Broker
from tests.support.waiting import until
from transport.client import FastClient
from transport.connection import connect
from transport.memory import MAX_PAYLOAD, MemoryBroker
from transport.nats_transport import NatsTransport


class JumpingClock:
    """A monotonic clock that a test can move, as a freeze does."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Transports(Protocol):
    """Makes transports on one broker."""

    max_payload: int

    async def make(self, now_s: JumpingClock | None = None) -> NatsTransport: ...

    async def restart(self) -> None:
        """The broker dies and is back, without what it had in memory. Returns when it can be reached."""

    async def take_away(self) -> None:
        """The broker dies; `bring_back` starts it again, empty."""

    async def bring_back(self) -> None: ...

    async def cut(self, transport: NatsTransport) -> None:
        """One connection breaks and is made again; the broker keeps everything. Returns when it is back."""

    async def close(self) -> None: ...


class MemoryTransports:
    """In process."""

    max_payload = MAX_PAYLOAD

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self._made: list[NatsTransport] = []
        self._names = itertools.count()

    async def make(self, now_s: JumpingClock | None = None) -> NatsTransport:
        self._made.append(await self.broker.connect(f"t{next(self._names)}", now_s=now_s or time.monotonic))
        return self._made[-1]

    async def restart(self) -> None:
        self.broker.restart()

    async def take_away(self) -> None:
        for transport in self._made:
            self.broker.disconnect(transport)
        self.broker.lose_streams()

    async def bring_back(self) -> None:
        for transport in self._made:
            self.broker.reconnect(transport)

    async def cut(self, transport: NatsTransport) -> None:
        self.broker.disconnect(transport)
        self.broker.reconnect(transport)

    async def close(self) -> None:
        await asyncio.gather(*(t.close() for t in self._made))


class NatsTransports:
    """Over a real nats-server."""

    max_payload = 1024 * 1024

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._made: list[NatsTransport] = []
        self._names = itertools.count()

    async def make(self, now_s: JumpingClock | None = None) -> NatsTransport:
        name = f"t{next(self._names)}"
        self._made.append(await connect(self.broker.settings, name, now_s=now_s or time.monotonic))
        return self._made[-1]

    async def restart(self) -> None:
        await self.broker.restart()

    async def take_away(self) -> None:
        self.broker.kill()

    async def bring_back(self) -> None:
        await self.broker.start()

    async def cut(self, transport: NatsTransport) -> None:
        assert isinstance(transport.link, FastClient)
        before = transport.num_reconnects
        transport.link._socket.close()
        await until(lambda: transport.num_reconnects > before)

    async def close(self) -> None:
        await asyncio.gather(*(t.close() for t in self._made))
        self.broker.kill()
