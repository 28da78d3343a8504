"""What tests share: an in-process broker with a gateway's side of it, and an HTTP door before a core that echoes."""

from collections.abc import AsyncIterator

import pytest

from gateway.http.server import HttpDoor
from tests.support.http_kit import EchoCore, RawClient, open_door
from tests.support.requester import Requester
from transport.memory import MemoryBroker


@pytest.fixture
async def memory_broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def requester(memory_broker: MemoryBroker) -> AsyncIterator[Requester]:
    transport = await memory_broker.connect("gateway")
    yield await Requester(transport).start()
    await transport.close()


@pytest.fixture
def core() -> EchoCore:
    return EchoCore()


@pytest.fixture
async def door(core: EchoCore) -> AsyncIterator[HttpDoor]:
    opened = await open_door(core)
    yield opened
    await opened.close()


@pytest.fixture
async def client(door: HttpDoor) -> AsyncIterator[RawClient]:
    async with RawClient(door.port) as connected:
        yield connected
