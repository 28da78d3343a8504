"""What the worker's tests share: an in-process broker and a gateway's side of it."""

from collections.abc import AsyncIterator

import pytest

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
