"""Usage on the broker: writes this gateway's counts every few seconds and at its end, reads everybody's.

A gateway life takes a slot of its own per day (the first to write it has it), then writes its totals there again and
again. Killed, it loses what it counted since the last write. What could not be written for want of a broker is written
when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

import structlog

from contract.errors import BrokerAway
from contract.streams import usage_slot_stream, usage_stream
from contract.subjects import usage_slot_subject, usage_subject
from gateway.usage.account import NUM_PARTS, Counts, add, day_of, decode_part, encode_part, part_of
from transport.base import StreamFull, StreamGone, Transport, TransportError

FLUSH_S: Final = 5.0
MAX_SLOTS: Final = 10_000
"""Gateway lives per day."""

log = structlog.get_logger("gateway.usage")


class UsageBook:
    """One gateway's pen, and everybody's reading glass."""

    def __init__(self, transport: Transport, take: Callable[[], Counts]) -> None:
        """`take` gives what was counted since it was last called."""
        self._transport = transport
        self._take = take
        self._day = ""
        self._slot = -1
        self._totals: Counts = {}
        self._unwritten: set[int] = set()
        self._lock = asyncio.Lock()
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write every few seconds until `close`."""
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def close(self) -> None:
        """Write what is left."""
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
        await self.flush()

    async def flush(self) -> bool:
        """Write what was counted; whether the broker has all of it."""
        async with self._lock:
            today = day_of(self._transport.clock.now_ms(time.monotonic()))
            try:
                if self._day != today:
                    await self._write()  # what is left of yesterday; until that is written its account stays open
                    self._day, self._slot, self._totals = today, -1, {}
                self._count()
                await self._write()
            except (TransportError, TimeoutError) as e:
                self._count()
                if isinstance(e, StreamGone):  # with all that was written: take a slot anew and write the day's totals
                    self._slot = -1
                    self._unwritten.update(part_of(tenant) for tenant, _, _ in self._totals)
                log.warning("usage-not-written", error=str(e))
                return False
            return True

    async def read(self, day: str, tenant: str | None) -> Counts:
        """All gateways' counts of a day: one tenant's, or everybody's. Raises BrokerAway."""
        totals: Counts = {}
        parts = range(NUM_PARTS) if tenant is None else (part_of(tenant),)
        try:
            for slot in range(MAX_SLOTS):
                if await self._last(usage_slot_stream().name, usage_slot_subject(day, slot)) is None:
                    break
                for part in parts:
                    payload = await self._last(usage_stream().name, usage_subject(day, slot, part))
                    if payload is not None:
                        add(totals, decode_part(payload))
        except (TransportError, TimeoutError) as e:
            raise BrokerAway(f"usage can't be read now: {e}") from e
        return totals if tenant is None else {key: n for key, n in totals.items() if key[0] == tenant}

    def _count(self) -> None:
        more = self._take()
        add(self._totals, more)
        self._unwritten.update(part_of(tenant) for tenant, _, _ in more)

    async def _write(self) -> None:
        if not self._unwritten:
            return
        if self._slot < 0:
            await self._transport.ensure_stream(usage_slot_stream())
            await self._transport.ensure_stream(usage_stream())
            self._slot = await self._take_slot()
        for part in sorted(self._unwritten):
            subject = usage_subject(self._day, self._slot, part)
            await self._transport.put_message(subject, encode_part(self._totals, part))
            self._unwritten.discard(part)

    async def _take_slot(self) -> int:
        for slot in range(MAX_SLOTS):
            subject = usage_slot_subject(self._day, slot)
            if await self._last(usage_slot_stream().name, subject) is None:
                with contextlib.suppress(StreamFull):  # another gateway was quicker
                    await self._transport.put_message(subject, b"")
                    return slot
        raise TransportError(f"all {MAX_SLOTS} slots of {self._day} are taken")

    async def _last(self, stream: str, subject: str) -> bytes | None:
        try:
            return await self._transport.last_message(stream, subject)
        except StreamGone:
            return None  # nobody has written yet

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()
