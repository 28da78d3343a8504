"""A gateway's core, workers that pull lanes, one broker of either kind: what the core's integration tests start."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from contract.model_config import ModelCard
from contract.principal import DEFAULT_PRINCIPAL
from contract.streams import BrokerLimits
from gateway.core import InferRequest, Outcome, Pending
from gateway.dispatch import Dispatch
from gateway.settings import GatewaySettings
from tests.support.lane_worker import LaneWorker
from tests.support.transports import Transports

WITHIN_S = 15.0


class GatewayDay:
    """What one test starts; all of it ends with the test."""

    def __init__(self, stack: AsyncExitStack, transports: Transports) -> None:
        self._stack = stack
        self.transports = transports

    async def worker(
        self,
        model: ModelCard,
        *,
        echoes: bool = True,
        limits: BrokerLimits | None = None,
    ) -> LaneWorker:
        return await LaneWorker(await self.transports.make(), model, echoes=echoes, limits=limits).start()

    async def gateway(self, broker: dict[str, Any] | None = None, **settings: Any) -> Dispatch:
        transport = await self.transports.make()
        dispatch = Dispatch(GatewaySettings(broker=broker or {}, **settings), transport)
        await dispatch.start()
        self._stack.push_async_callback(dispatch.close)
        return dispatch


def ask(
    gateway: Dispatch, request: InferRequest, model: str = "tiny", version: str = ""
) -> tuple[Pending, asyncio.Future[Outcome]]:
    """Submit; the future gets the one outcome (and fails the test on a second: it can't be set twice)."""
    heard: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    target = gateway.resolve(DEFAULT_PRINCIPAL, "", model, version)
    return gateway.submit(target, request, heard.set_result), heard


async def answer(gateway: Dispatch, request: InferRequest, model: str = "tiny", version: str = "") -> Outcome:
    """Submit and wait."""
    async with asyncio.timeout(WITHIN_S):
        return await ask(gateway, request, model, version)[1]
