"""Fixtures that every layer of the tests may use: a broker process of the test's own, and transports of either kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.transports import MemoryTransports, NatsTransports, Transports

TESTS = Path(__file__).parent
ONE_AT_A_TIME = {"e2e", "faults"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that start whole process trees, kill parts of them and time the rest share one worker of pytest-xdist."""
    if item.path.relative_to(TESTS).parts[0] in ONE_AT_A_TIME:
        item.add_marker(pytest.mark.xdist_group("processes"))


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
