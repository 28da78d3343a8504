"""What all connections of one HTTP door share: the core, who asks, bounds, counters, the clock tick. Does no I/O."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from secrets import token_hex

from contract.principal import Principal
from gateway.core import Core
from gateway.http.counters import DoorCounters
from gateway.settings import GatewaySettings

Identify = Callable[[str | None], Principal]
"""`Authorization` header to caller; raises Unauthenticated."""


class Doorway:
    """Shared by the connections of one door."""

    def __init__(self, core: Core, identify: Identify, settings: GatewaySettings) -> None:
        self.core = core
        self.identify = identify
        self.counters = DoorCounters()
        self.default_timeout_s = min(settings.default_timeout_ms, settings.max_timeout_ms) / 1000
        self.max_timeout_ms = settings.max_timeout_ms
        self.max_request_bytes = settings.max_request_bytes
        self.max_json_bytes = settings.max_json_bytes
        self.max_receiving_bytes = settings.max_held_bytes
        self.receiving_bytes = 0
        """Bytes of request bodies that are not complete yet, over all connections."""
        self.is_draining = False
        self.tasks: set[asyncio.Task[None]] = set()
        """Bodies that are being compressed or decompressed."""
        self.emptied = asyncio.Event()
        """Set when the last connection goes."""
        self.tick = 0
        """Seconds since the start, counted by the door's sweep: a clock that costs nothing to read."""
        self._prefix = token_hex(4)
        self._numbers = itertools.count(1)

    def new_request_id(self) -> str:
        """Unique over all gateways as far as 32 random bits go, and in order within this one."""
        return f"{self._prefix}{next(self._numbers):08x}"
