"""Says that this gateway lives and learns who else does: heartbeats out and in, presence asked for when it matters.

Our own heartbeats come back to us as they reach workers: when none did for a while, workers may have held us for dead.
A model's presence subject is asked when its requests get no answer, or when one of its workers is late with its
heartbeat; "no responders" from the broker is proof that nobody is connected. Routes nothing: the registry is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from contract.envelope import BadEnvelope, pack, unpack
from contract.messages import GatewayBeat, WorkerBeat
from contract.streams import BEAT_S, DEAD_AFTER_S
from contract.subjects import (
    ASK_BEATS,
    GATEWAY_BEATS,
    WORKER_BEATS,
    alive_subject,
    gateway_beat_subject,
    open_cancels_subject,
)
from gateway.cancels import Cancels
from gateway.coalescer import ModelWatch
from gateway.registry import ModelKey, Registry
from transport.base import NoResponders, Subscription, Transport, TransportError

TICK_S: Final = 0.05
FIRST_BEATS_S: Final = 1.0
"""How long a starting gateway waits for the first worker's heartbeat."""
SETTLE_S: Final = 0.1
"""The others' heartbeats come with it, give or take."""
PROBE_AFTER_S: Final = 0.05
"""Silence of a model with open requests before its presence is asked for; doubles up to MAX_PROBE_PAUSE_S."""
MAX_PROBE_PAUSE_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 0.5
FORGOTTEN_AFTER_S: Final = DEAD_AFTER_S - 0.5
"""So long without a heartbeat of ours passing the broker (a freeze, a line that swallows), and workers may have dropped
what we asked for. A little less than they wait: doing work twice is better than losing it."""

REFRESH_S: Final = 0.3
"""Patience for everybody's figures: a worker whose loop is blocked that long is told with what it said last."""

log = structlog.get_logger("gateway.presence")


def due_probes(watches: Iterable[ModelWatch], now_s: float) -> list[ModelKey]:
    """Models whose open requests wait in silence, and when each is due again: notes it in the watch."""
    due = []
    for watch in watches:
        silence_s = now_s - watch.silent_since_s
        if watch.num_open and silence_s >= PROBE_AFTER_S and now_s >= watch.next_probe_s:
            watch.next_probe_s = now_s + min(MAX_PROBE_PAUSE_S, silence_s)
            due.append((watch.group, watch.model))
    return due


class Presence:
    """Heartbeats and probes of one gateway."""

    def __init__(
        self,
        transport: Transport,
        *,
        gateway: str,
        version: str,
        groups: Sequence[str],
        registry: Registry,
        cancels: Cancels,
        watches: Callable[[], Iterable[ModelWatch]],
        num_in_flight: Callable[[], int],
        on_forgotten: Callable[[], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._groups = groups
        self._registry = registry
        self._cancels = cancels
        self._watches = watches
        self._num_in_flight = num_in_flight
        self._on_forgotten = on_forgotten
        self._monotonic = monotonic
        self._beat = GatewayBeat(
            gateway, int(time.time() * 1000), version, socket.gethostname(), os.getpid(), "serving", 0, ""
        )
        self._subscriptions: list[Subscription] = []
        self._first_beat = asyncio.Event()
        self._probing: dict[ModelKey, asyncio.Task[None]] = {}
        self._late_probe_s: dict[ModelKey, float] = {}
        self._next_beat_s = 0.0
        self._unheard: set[str] = set()
        self._all_heard = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._refreshed_s = 0.0
        self._passed_s = monotonic()
        """When one of our heartbeats was last seen to pass the broker."""

    async def start(self) -> None:
        """Beat, ask, and wait a moment for who is there."""
        subscribe = self._transport.subscribe
        self._passed_s = self._monotonic()
        self._subscriptions = [
            await subscribe(WORKER_BEATS, self._on_worker_beat),
            await subscribe(GATEWAY_BEATS, self._on_gateway_beat),
            await subscribe(ASK_BEATS, lambda _subject, _reply, _payload: self.beat()),
        ]
        for group in self._groups:
            answer = self._answer_cancels(group)
            self._subscriptions.append(await subscribe(open_cancels_subject(group), answer))
        self._transport.on_reconnect(self._on_reconnect)
        self._ask()
        try:
            async with asyncio.timeout(FIRST_BEATS_S):
                await self._first_beat.wait()
                await asyncio.sleep(SETTLE_S)
        except TimeoutError:
            log.info("no-workers-yet", waited_s=FIRST_BEATS_S)

    def say(self, *, state: str | None = None, address: str | None = None) -> None:
        """Change what the heartbeat says, and say it at once."""
        self._beat.state = state or self._beat.state
        self._beat.address = address or self._beat.address
        self.beat()

    def beat(self) -> None:
        """One heartbeat, now."""
        self._beat.num_in_flight = self._num_in_flight()
        self._next_beat_s = self._monotonic() + BEAT_S
        self._send(gateway_beat_subject(self._beat.gateway), pack(self._beat))

    async def refresh(self, pause_s: float) -> None:
        """Ask everybody to beat and wait for each live worker's, at the earliest `pause_s` after it was last asked.

        One question serves all who wait for the next.
        """
        arrived_s = self._monotonic()
        async with self._refreshing:
            if self._refreshed_s > arrived_s or not self._transport.is_connected:
                return
            await asyncio.sleep(max(0.0, self._refreshed_s + pause_s - self._monotonic()))
            self._refreshed_s = self._monotonic()
            self._unheard = {beat.worker for beat in self._registry.workers()}
            if not self._unheard:
                return
            self._all_heard.clear()
            self._send(ASK_BEATS, b"")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._all_heard.wait()

    def tick(self) -> None:
        """Called every TICK_S: beat when due, bury the dead, ask for the silent."""
        now_s = self._monotonic()
        if not self._transport.is_connected:
            return
        if now_s >= self._next_beat_s:
            self.beat()
        for beat in self._registry.sweep(now_s):
            log.warning("worker-dead", worker=beat.worker, group=beat.group)
        for key in [*due_probes(self._watches(), now_s), *self._due_late(now_s)]:
            if key not in self._probing and self._registry.card(*key) is not None:
                task = asyncio.get_running_loop().create_task(self._probe(key))
                self._probing[key] = task
                task.add_done_callback(lambda _done, key=key: self._probing.pop(key, None))  # type: ignore[misc]

    async def close(self) -> None:
        """Say goodbye by silence."""
        for task in list(self._probing.values()):
            task.cancel()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            try:
                await subscription.unsubscribe()
            except TransportError:
                break

    def _due_late(self, now_s: float) -> list[ModelKey]:
        late = self._registry.late(now_s)
        self._late_probe_s = {key: s for key, s in self._late_probe_s.items() if key in late}
        due = [key for key in late if now_s >= self._late_probe_s.get(key, 0.0)]
        self._late_probe_s.update(dict.fromkeys(due, now_s + PROBE_TIMEOUT_S))
        return due

    async def _probe(self, key: ModelKey) -> None:
        group, model = key
        try:
            await self._transport.request(alive_subject(group, model), b"", PROBE_TIMEOUT_S)
        except NoResponders:
            if self._registry.on_no_responders(group, model):
                log.warning("model-unserved", group=group, model=model)
        except TransportError as e:
            # Busy is not gone: a worker that does not answer in time may hold the GIL.
            log.debug("probe-unanswered", group=group, model=model, error=str(e))

    def _ask(self) -> None:
        self.beat()
        self._send(ASK_BEATS, b"")

    def _on_reconnect(self) -> None:
        self._passed_s = self._monotonic()
        self._registry.forgive(self._passed_s)
        self._ask()

    def _send(self, subject: str, payload: bytes) -> None:
        try:
            self._transport.publish(subject, payload)
        except TransportError as e:
            log.debug("beat-not-sent", subject=subject, error=str(e))

    def _on_worker_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        try:
            beat, _ = unpack(WorkerBeat, payload)
        except BadEnvelope as e:
            log.warning("beat-unreadable", error=str(e))
            return
        self._registry.on_worker_beat(beat, self._monotonic())
        self._first_beat.set()
        self._unheard.discard(beat.worker)
        if not self._unheard:
            self._all_heard.set()

    def _on_gateway_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        try:
            beat, _ = unpack(GatewayBeat, payload)
        except BadEnvelope as e:
            log.warning("beat-unreadable", error=str(e))
            return
        now_s = self._monotonic()
        self._registry.on_gateway_beat(beat, now_s)
        if beat.gateway == self._beat.gateway:
            self._passed(now_s)

    def _passed(self, now_s: float) -> None:
        silent_s, self._passed_s = now_s - self._passed_s, now_s
        if silent_s > FORGOTTEN_AFTER_S:
            log.warning("silent-too-long", silent_s=round(silent_s, 3))
            # The broker's word on what was published meanwhile comes with it, give or take.
            asyncio.get_running_loop().call_later(SETTLE_S, self._on_forgotten)

    def _answer_cancels(self, group: str) -> Callable[[str, str, bytes], None]:
        def answer(_subject: str, reply: str, _payload: bytes) -> None:
            if reply:
                self._send(reply, self._cancels.open_message(group))

        return answer
