"""Connections to the test's own broker, closed whatever happens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.broker import Broker
from transport.connection import connect
from transport.nats_transport import NatsTransport
from transport.settings import BrokerSettings

Make = Callable[..., Awaitable[NatsTransport]]


@pytest.fixture
async def make(broker: Broker) -> AsyncIterator[Make]:
    """Makes transports on `broker`, or on other settings."""
    made: list[NatsTransport] = []
    names = itertools.count()

    async def connect_one(settings: BrokerSettings | None = None) -> NatsTransport:
        made.append(await connect(settings or broker.settings, f"t{next(names)}"))
        return made[-1]

    yield connect_one
    await asyncio.gather(*(t.close() for t in made))


@pytest.fixture
async def large_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """One that takes messages of 8 MiB."""
    server = Broker(tmp_path_factory.mktemp("large"), max_payload=8 * 1024 * 1024)
    await server.start()
    yield server
    server.kill()
