"""A real worker on the in-process broker: what it answers, batches, drops and hands back."""

import asyncio

import numpy as np
import pytest

from contract.model_config import VersionState
from tests.support.requester import Requester
from tests.support.worker_kit import double_config, entry, row, running, state_of
from transport.memory import MemoryBroker


@pytest.fixture
async def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def requester(broker: MemoryBroker):
    transport = await broker.connect("gateway")
    yield await Requester(transport).start()
    await transport.close()


@pytest.mark.parametrize("inline", [True, False])
async def test_requests_of_one_message_are_answered_in_one_reply(broker, requester, inline: bool) -> None:
    async with running(broker, entry(double_config()), inline=inline) as w:
        ids = requester.send("m", [row(i) for i in range(1, 6)])
        answers = await requester.all(ids)
        assert [a.arrays["OUT"].tolist() for a in answers] == [[[2.0 * i, 2.0 * i]] for i in range(1, 6)]
        assert {a.num_in_message for a in answers} == {5}
        assert {a.version for a in answers} == {"1"}
        assert w.model().rows == [5]
