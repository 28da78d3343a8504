"""A model's lanes on one worker: opened and stopped by version, all within one row window. Reads no message.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from contract.model_config import ModelConfig
from contract.subjects import LANES, Lane, LaneAddress
from transport.base import Delivery, RowWindow, Transport, TransportError
from workers.backoff import Backoff
from workers.inhand import LanePort, RoomGiver

WINDOW_MICRO_BATCHES: Final = 2
EAGER_SLACK_ROWS: Final = 16
EAGER_ROWS: Final = 1_024
"""Rows an eager model without `max_queue_size` may have in hand."""
LANE_BACKOFF_S: Final = 0.2

OnDelivery = Callable[[Delivery, RoomGiver], int]

log = structlog.get_logger()


class ModelLanes:
    """The lanes of one model with one config."""

    def __init__(self, group: str, config: ModelConfig, transport: Transport, on_delivery: OnDelivery) -> None:
        self._group = group
        self._config = config
        self._transport = transport
        self._on_delivery = on_delivery
        self._ports: dict[tuple[str, Lane], LanePort] = {}
        self._window: RowWindow | None = None
        self._limits: dict[str, int] = {}
        self._is_leaving = False

    @property
    def num_credits(self) -> int:
        """Messages asked for and not yet come."""
        return sum([port.lane.num_credits for port in self._ports.values() if port.lane is not None])

    @property
    def rows_in_hand(self) -> int:
        """Rows that have not left."""
        return self._window.rows_in_hand if self._window is not None else 0

    def limit(self, version: str, max_rows: int | None) -> None:
        """Rows that this version lets us have in hand; None where it sets no limit."""
        if max_rows is None:
            self._limits.pop(version, None)
        else:
            self._limits[version] = max_rows
        if self._window is not None and not self._config.is_eager:
            full = window_rows(self._config)
            self._window.resize(min(full, sum(self._limits.values())) if self._limits else full)

    async def open(self, *versions: str) -> None:
        """Open those that are not, for as long as the broker takes to come back."""
        for version in versions:
            for lane in LANES:
                if (version, lane) not in self._ports:
                    await self._open_lane(version, lane)

    async def stop(self, *versions: str) -> None:
        """Pull nothing more for these."""
        ports = [self._ports.pop((version, lane), None) for version in versions for lane in LANES]
        await asyncio.gather(*(port.lane.stop() for port in ports if port is not None and port.lane is not None))

    async def leave(self) -> None:
        """Pull nothing more, and open nothing more."""
        self._is_leaving = True
        await self.stop(*{version for version, _ in self._ports})

    async def _open_lane(self, version: str, lane: Lane) -> None:
        port = self._ports[version, lane] = LanePort()
        address = LaneAddress(self._group, self._config.name, version, lane)
        if self._window is None:
            self._window = self._transport.row_window(window_rows(self._config))
        is_always_open = lane == "hi" or has_queue_limit(self._config)
        backoff = Backoff(LANE_BACKOFF_S)
        while not self._is_leaving:
            try:
                opened = await self._transport.open_lane(
                    address,
                    self._window,
                    lambda delivery: self._on_delivery(delivery, port),
                    is_always_open=is_always_open,
                )
            except TransportError as e:
                pause_s = backoff.pause_s()
                log.warning("lane-not-opened", consumer=address.consumer, error=str(e), again_in_s=pause_s)
                await asyncio.sleep(pause_s)
            else:
                port.attach(opened)
                if self._is_leaving:
                    await opened.stop()
                return


def has_queue_limit(config: ModelConfig) -> bool:
    """Whether the worker must see every request at once, to refuse those over `max_queue_size`."""
    batching = config.dynamic_batching
    if batching is None:
        return False
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    return any(policy.max_queue_size for policy in policies)


def window_rows(config: ModelConfig) -> int:
    """Rows of a model that a worker has in hand at most: two micro-batches per instance, or an eager model's queue."""
    slots = max(1, config.max_batch_size) * config.num_instances
    if not config.is_eager:
        return WINDOW_MICRO_BATCHES * slots
    batching = config.dynamic_batching
    assert batching is not None
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    limit = sum([policy.max_queue_size for policy in policies])
    # The limit counts requests: each may have as many rows as fit, and one too many must still come, to be refused.
    return limit * max(1, config.max_batch_size) + slots + EAGER_SLACK_ROWS if limit else EAGER_ROWS
