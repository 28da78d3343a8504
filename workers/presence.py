"""How the outside sees one worker and what it hears: heartbeats, presence, cancels, gateways' heartbeats, control.

Sends nothing on the request path. A heartbeat leaves each second, at every change, and when somebody asks.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Final, Protocol

import psutil
import structlog

from contract import subjects
from contract.envelope import BadEnvelope, pack, unpack
from contract.messages import CancelMessage, ControlReply, ControlRequest, GatewayBeat, WorkerBeat
from contract.model_config import ModelCard, ModelStats
from contract.streams import BEAT_S
from transport.base import Subscription, Transport, TransportError
from workers.desk import Desk
from workers.fences import Fences
from workers.gpu_watch import GpuWatch

ASK_CANCELS_S: Final = 0.1
"""How long a starting worker collects open cancels before its first pull."""

log = structlog.get_logger()


class Subject(Protocol):
    """What presence tells about: the worker's state, its models and their counters."""

    state: str
    desk: Desk
    """Told whose answers nobody reads any more."""
    control_mode: str

    def cards(self) -> list[ModelCard]:
        """The models as offered now."""

    def stats(self) -> list[ModelStats]:
        """Their counters and gauges now."""

    def unloaded(self) -> dict[str, str]:
        """Models of the repository that are not served, and why."""

    def control(self, request: ControlRequest) -> Awaitable[ControlReply]:
        """Do what an operator asked."""


class Presence:
    """One worker's voice and ears beside the queue."""

    def __init__(
        self,
        transport: Transport,
        fences: Fences,
        subject: Subject,
        *,
        worker: str,
        group: str,
        version: str,
        now_s: Callable[[], float],
        gpus: GpuWatch | None = None,
    ) -> None:
        self._gpus = gpus or GpuWatch()
        self._transport = transport
        self._fences = fences
        self._subject = subject
        self._worker = worker
        self._group = group
        self._version = version
        self._now_s = now_s
        self._started_unix_ms = transport.clock.now_ms(now_s())
        self._host = socket.gethostname()
        self._process = psutil.Process()
        self._alive: dict[str, Subscription] = {}
        self._controls: set[asyncio.Task[None]] = set()
        self._is_beat_due = False
        transport.on_disconnect(self._pardon)
        transport.on_reconnect(self._came_back)

    async def listen(self) -> None:
        """Subscribe to everything a worker hears; call before the first pull."""
        subscribe = self._transport.subscribe
        await subscribe(subjects.cancel_subject(self._group), self._on_cancel)
        await subscribe(subjects.GATEWAY_BEATS, self._on_gateway_beat)
        await subscribe(subjects.ASK_BEATS, lambda _subject, _reply, _payload: self.beat_soon())
        await subscribe(subjects.worker_control_subject(self._worker), self._on_control)
        await subscribe(subjects.worker_beat_subject(self._group, self._worker), self._on_own_beat)

    async def ask_cancels(self) -> None:
        """Learn what gateways have cancelled and whether they live; takes 100 ms whoever answers."""
        inbox = self._transport.new_inbox("c")
        subscription = await self._transport.subscribe(inbox, self._on_open_cancels)
        try:
            self._transport.publish(subjects.open_cancels_subject(self._group), b"", inbox)
            self._transport.publish(subjects.ASK_BEATS, b"")
            await asyncio.sleep(ASK_CANCELS_S)
        except TransportError as e:
            log.warning("open-cancels-not-asked", error=str(e))
        finally:
            await subscription.unsubscribe()

    async def announce(self, model: str) -> None:
        """From now on "is anybody there for `model`?" is answered."""
        if model not in self._alive:
            subject = subjects.alive_subject(self._group, model)
            self._alive[model] = await self._transport.subscribe(subject, self._on_alive(model))
        self.beat_soon()

    async def withdraw(self, model: str) -> None:
        """It is not served here any more."""
        subscription = self._alive.pop(model, None)
        if subscription is not None:
            await subscription.unsubscribe()
        self.beat_soon()

    async def withdraw_all(self) -> None:
        """Nothing is served here any more."""
        for model in list(self._alive):
            await self.withdraw(model)

    def beat(self) -> None:
        """Send a heartbeat, unless the broker is away."""
        self._is_beat_due = False
        if not self._transport.is_connected:
            return
        message = WorkerBeat(
            worker=self._worker,
            group=self._group,
            started_unix_ms=self._started_unix_ms,
            version=self._version,
            host=self._host,
            pid=os.getpid(),
            state=self._subject.state,
            models=self._subject.cards(),
            stats=self._subject.stats(),
            rss_bytes=self._process.memory_info().rss,
            unloaded=self._subject.unloaded(),
            control_mode=self._subject.control_mode,
            gpus=self._gpus.latest,
        )
        try:
            self._transport.publish(subjects.worker_beat_subject(self._group, self._worker), pack(message))
        except TransportError as e:
            log.warning("heartbeat-not-sent", error=str(e))
        else:
            self._subject.desk.outbox.unconfirmed.beat()

    def beat_soon(self) -> None:
        """Send one at the end of this tick, however many changes the tick brings."""
        if not self._is_beat_due:
            self._is_beat_due = True
            asyncio.get_running_loop().call_soon(self.beat)

    async def run(self, stop: asyncio.Event) -> None:
        """Beat each second until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpus.run(stop))
            await self._beat_until(stop)

    async def _beat_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.tick(self._now_s())
            try:
                async with asyncio.timeout(BEAT_S):
                    await stop.wait()
            except TimeoutError:
                continue

    def tick(self, now_s: float) -> None:
        """What happens once a second."""
        self._fences.sweep(now_s)
        if self._transport.is_connected:
            self._subject.desk.drop_dead(now_s)
        self.beat()

    def _pardon(self) -> None:
        self._fences.pardon(self._now_s())

    def _came_back(self) -> None:
        self._pardon()
        self.beat()

    def _on_own_beat(self, _subject: str, _reply: str, _payload: bytes) -> None:
        self._fences.hear_self(self._now_s())
        self._subject.desk.outbox.unconfirmed.confirm()

    def _on_open_cancels(self, subject: str, reply: str, payload: bytes) -> None:
        if payload:  # an empty one is the broker's: no gateway is there
            self._on_cancel(subject, reply, payload)

    def _on_cancel(self, _subject: str, _reply: str, payload: bytes) -> None:
        try:
            message, _ = unpack(CancelMessage, payload)
        except BadEnvelope as e:
            log.warning("cancel-not-read", error=e.message)
            return
        until_s = self._transport.clock.from_wire_ms(message.deadline_unix_ms)
        if until_s > self._now_s():
            self._fences.cancel(message.gateway, message.ids, until_s)
        self._subject.desk.drop_cancelled(message.gateway, message.ids)

    def _on_gateway_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        try:
            message, _ = unpack(GatewayBeat, payload)
        except BadEnvelope as e:
            log.warning("gateway-beat-not-read", error=e.message)
            return
        self._fences.hear(message.gateway, self._now_s())

    def _on_alive(self, model: str) -> Callable[[str, str, bytes], None]:
        def answer(_subject: str, reply: str, payload: bytes) -> None:
            """Whoever asks for one version hears only of that."""
            if reply and (not payload or payload.decode(errors="replace") in self._ready_versions(model)):
                self._answer(reply, self._worker.encode())

        return answer

    def _ready_versions(self, model: str) -> tuple[str, ...]:
        return next((card.ready_versions for card in self._subject.cards() if card.config.name == model), ())

    def _on_control(self, _subject: str, reply: str, payload: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._control(reply, payload))
        self._controls.add(task)
        task.add_done_callback(self._controls.discard)

    async def _control(self, reply: str, payload: bytes) -> None:
        try:
            request, _ = unpack(ControlRequest, payload)
        except BadEnvelope as e:
            answer = ControlReply(error=e.message)
        else:
            answer = await self._subject.control(request)
        if reply:
            self._answer(reply, pack(answer))

    def _answer(self, reply: str, payload: bytes) -> None:
        try:
            self._transport.reply(reply, payload)
        except TransportError as e:
            log.warning("answer-not-sent", error=str(e))


def package_version() -> str:
    """This distribution's version, as heartbeats tell it."""
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "0"
