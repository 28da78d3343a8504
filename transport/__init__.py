"""How messages travel. The only package that imports `nats`. The in-memory twin behaves the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.base import Transport
    from transport.settings import BrokerSettings


async def connect(settings: BrokerSettings, name: str) -> Transport:
    """A transport on a real broker; `transport.memory.MemoryBroker` makes those without one."""
    from transport.connection import connect as connect_to_server

    return await connect_to_server(settings, name)
