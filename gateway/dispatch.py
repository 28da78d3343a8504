"""The core behind the doors: resolve, admit, queue, hear, answer. Decides little itself; wires those who do.

    door → submit → admission → in-flight table → coalescer ~~ end of tick ~~> outbox → broker
    broker → receiver → in-flight table (first answer wins) → done → door

Per request there is no task, no future and no timer: one tick's requests share a flush, all deadlines share a sweep.

Invariants: see `gateway/core.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from secrets import token_hex
from typing import Final

import structlog

from contract.errors import Draining, HeadraceError
from contract.model_config import ModelCard, ModelStats
from contract.principal import Principal
from contract.streams import BrokerLimits, blob_stream
from gateway.admission import Admission
from gateway.cancels import Cancels
from gateway.coalescer import Coalescer
from gateway.core import Done, InferRequest, Pending, Target
from gateway.inflight import BUCKETS_PER_S, Entry, Inflight
from gateway.outbox import Outbox
from gateway.payloads import Payloads
from gateway.presence import TICK_S, Presence
from gateway.receiver import Receiver
from gateway.recovery import Recovery
from gateway.registry import Registry
from gateway.repository import Repository
from gateway.router import Router
from gateway.settings import GatewaySettings
from gateway.unloads import Unloads
from transport.base import Subscription, Transport, TransportError
from transport.settings import BrokerSettings

FIRST_STREAMS_S: Final = 5.0
"""How long a starting gateway waits for its streams; afterwards it starts unready and goes on trying."""
SWEEP_S: Final = 1 / BUCKETS_PER_S

log = structlog.get_logger("gateway.dispatch")


class _Refused:
    """The Pending of a request that ended in `submit`."""

    def cancel(self) -> None:
        """Nothing is left to cancel."""


_REFUSED: Final = _Refused()


class Dispatch:
    """One gateway's core; `start` before the first request, `close` after the last."""

    def __init__(
        self,
        settings: GatewaySettings,
        transport: Transport,
        *,
        version: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gateway = token_hex(8)
        self._transport = transport
        self._monotonic = monotonic
        limits = _limits(settings.broker)
        self.registry = Registry()
        self.router = Router(
            settings.services, settings.default_service, self.registry, lambda: transport.clock.now_ms(monotonic())
        )
        self.admission = Admission(settings.max_in_flight, settings.max_held_bytes)
        self.inflight = Inflight(self._on_ended)
        self.cancels = Cancels(transport, self.gateway, monotonic)
        self._coalescer = Coalescer()
        self._inbox = transport.new_inbox("r")
        self.payloads = Payloads(transport, self.gateway, blob_stream(limits), self.inflight, self._on_uploaded)
        self.outbox = Outbox(
            transport,
            gateway=self.gateway,
            reply=self._inbox,
            inflight=self.inflight,
            upload=self.payloads.upload,
            resend=self._queue,
            on_stream_gone=self._on_stream_gone,
        )
        self.receiver = Receiver(self.inflight, self.payloads, monotonic)
        self.recovery = self._make_recovery(limits)
        self.presence = self._make_presence(version)
        self._unloads = Unloads(self.registry, self.inflight, lambda: self._coalescer.watches)
        self.repository = Repository(
            transport, self.registry, self.router, gateway=self.gateway, timeout_s=settings.model_load_timeout_s
        )
        self._is_draining = False
        self._replies: Subscription | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._emptied = asyncio.Event()

    def _make_recovery(self, limits: BrokerLimits) -> Recovery:
        return Recovery(
            self._transport,
            groups=self.router.groups,
            limits=limits,
            inflight=self.inflight,
            outbox=self.outbox,
            payloads=self.payloads,
            cancels=self.cancels,
            resend=self._queue,
            withdraw=self._coalescer.withdraw,
            monotonic=self._monotonic,
        )

    def _make_presence(self, version: str) -> Presence:
        return Presence(
            self._transport,
            gateway=self.gateway,
            version=version,
            groups=self.router.groups,
            registry=self.registry,
            cancels=self.cancels,
            watches=lambda: self._coalescer.watches,
            num_in_flight=lambda: len(self.inflight),
            on_forgotten=self.recovery.forgotten,
            monotonic=self._monotonic,
        )

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen, ensure the streams, say hello."""
        self._loop = asyncio.get_running_loop()
        self._replies = await self._transport.subscribe(self._inbox, self.receiver.on_reply)
        await self.recovery.start(FIRST_STREAMS_S)
        await self.presence.start()
        self._ticker = self._loop.create_task(self._tick())

    def begin_drain(self) -> None:
        """Say that this gateway is going: unready from now on, but what still comes is still served."""
        self._is_draining = True
        self.presence.say(state="draining")

    async def drain(self, timeout_s: float) -> int:
        """Take nothing new, finish what was accepted; returns how many were still open at the end."""
        self.begin_drain()
        self.admission.close(Draining, "this gateway is shutting down")
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.inflight):
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            log.warning("drain-cut-short", num_open=len(self.inflight))
        return len(self.inflight)

    async def close(self) -> None:
        """End what is still open with Draining, then stop; again is fine. The transport stays the caller's to close."""
        self.admission.close(Draining, "this gateway is shutting down")
        for entry in list(self.inflight.entries()):
            self.inflight.end(entry, Draining("this gateway shut down before the answer was there"))
        self.cancels.flush()
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        await self.recovery.close()
        await self.payloads.close()
        await self.presence.close()
        replies, self._replies = self._replies, None
        if replies is not None:
            try:
                await replies.unsubscribe()
            except TransportError as e:
                log.debug("unsubscribe-failed", error=str(e))

    # ------------------------------------------------------------------ Core

    @property
    def is_ready(self) -> bool:
        """See `Core.is_ready`."""
        return self._transport.is_connected and self.recovery.is_complete and not self._is_draining

    def resolve(self, principal: Principal, service: str, model: str, version: str) -> Target:
        """See `Core.resolve`."""
        if self.admission.closed_with is not None:
            self.admission.check_open()
        target = self.router.resolve(principal, service, model, version)
        if target.group not in self.outbox.open_groups:
            self.recovery.check(target.group)
        return target

    def models(self, service: str = "") -> list[tuple[str, ModelCard]]:
        """See `Core.models`."""
        return self.router.models(service)

    def statistics(self, group: str, model: str, version: str) -> ModelStats:
        """See `Core.statistics`."""
        return self.registry.ledger.total(group, model, version)

    async def refresh(self, pause_s: float = 0.0) -> None:
        """See `Core.refresh`."""
        await self.presence.refresh(pause_s)

    def submit(self, target: Target, request: InferRequest, done: Done) -> Pending:
        """See `Core.submit`."""
        now_s = self._monotonic()
        body_bytes = request.payload_bytes or sum([len(part) for part in request.data])
        ticket = self.admission.admit(request.principal, body_bytes, request.deadline_s, now_s)
        if isinstance(ticket, HeadraceError):
            done(ticket)
            return _REFUSED
        lane = self._coalescer.lane(target, request.principal.lane(request.priority))
        entry = self.inflight.add(lane, request, done, ticket, body_bytes=body_bytes, now_s=now_s)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)
        if self._coalescer.add(entry):
            self._transport.at_tick_end(self._flush)
        return entry

    # ------------------------------------------------------------------ out

    def _queue(self, entry: Entry) -> None:
        if self._coalescer.add(entry):
            self._transport.at_tick_end(self._flush)

    def _flush(self) -> None:
        for lane, entries in self._coalescer.take():
            if entries:
                self.outbox.send(lane, entries)

    def _on_uploaded(self, entry: Entry) -> None:
        if entry.lane.address.group in self.outbox.open_groups:
            self.outbox.publish(entry.lane, [entry])

    def _on_stream_gone(self, group: str) -> None:
        self.recovery.stream_gone(group)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self.inflight.sweep(self._monotonic())
        if len(self.inflight) and self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _on_ended(self, entry: Entry, is_settled: bool) -> None:
        self.outbox.forget(entry, is_settled=is_settled)
        if entry.is_published and not is_settled:
            self.cancels.add(entry)
        if entry.blob is not None:
            self.payloads.purge(entry.blob)
        if not len(self.inflight):
            self._emptied.set()

    async def _tick(self) -> None:
        """Presence and recovery, twenty times a second until `close`."""
        while True:
            await asyncio.sleep(TICK_S)
            self.presence.tick()
            self._unloads.tick(self._monotonic())
            self.recovery.take_stranded()


def _limits(broker: BrokerSettings) -> BrokerLimits:
    return BrokerLimits(
        online_max_msgs=broker.online_max_msgs,
        online_max_bytes=broker.online_max_bytes,
        blob_max_bytes=broker.blob_max_bytes,
    )
