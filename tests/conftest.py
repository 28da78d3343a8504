"""Fixtures that every layer of the tests may use: a broker process of the test's own, and transports of either kind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.transports import MemoryTransports, NatsTransports, Transports

TESTS = Path(__file__).parent
ONE_AT_A_TIME = {"cases", "e2e", "faults"}


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time-out: waiting for one's turn is free
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests that start whole process trees, kill parts of them and time the rest do not run beside each other."""
    is_parallel = "PYTEST_XDIST_WORKER" in os.environ
    if not is_parallel or item.path.relative_to(TESTS).parts[0] not in ONE_AT_A_TIME:
        return (yield)
    with Path(__file__).open("rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A real nats-server with JetStream."""
    server = Broker(tmp_path_factory.mktemp("broker"))
    await server.start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "nats"])
async def transports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Transports]:
    """Makes transports that share one broker, in process and over nats-server in turn."""
    kit: Transports
    if request.param == "memory":
        kit = MemoryTransports()
    else:
        server = Broker(tmp_path_factory.mktemp("broker"))
        await server.start()
        kit = NatsTransports(server)
    yield kit
    await kit.close()
