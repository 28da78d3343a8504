"""The HTTP door runs on uvloop where it can and on asyncio's own loop where it must: its tests run on both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from gateway.http.server import HttpDoor
from tests.support.http_kit import EchoCore, open_door


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def door(core: EchoCore) -> AsyncIterator[HttpDoor]:
    opened = await open_door(core, max_request_bytes=400_000, max_json_bytes=200_000)
    yield opened
    await opened.close()
