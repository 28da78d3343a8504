"""One worker process's life: connect, listen, load, serve, drain. Decides nothing about requests.

python -m workers.worker    settings as one JSON line on stdin; the end of stdin means that the parent died

starting -> serving (each model as it gets ready) -> draining: pull nothing, hand back, finish, exit 0
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Final

import structlog

from contract.errors import Draining
from contract.messages import ControlReply, ControlRequest
from contract.model_config import ModelCard, ModelStats
from contract.streams import BrokerLimits, blob_stream, online_stream, started_stream
from transport.base import Transport, TransportError
from workers.backends.registry import load_instance
from workers.backoff import Backoff
from workers.control import Control
from workers.desk import Desk
from workers.fences import Fences
from workers.gate import Gate
from workers.host import RunAlone
from workers.hosted import HostedModel
from workers.items import WorkItem
from workers.lifecycle import Lifecycle, ListModels
from workers.modellife import ReadModel, Surroundings, Survey
from workers.presence import Presence, package_version
from workers.replies import Outbox
from workers.repository.footprint import take_footprint
from workers.repository.read import model_names, read_model
from workers.repository.refusal import ConfigRefused
from workers.seats import LoadInstance
from workers.settings import WorkerSettings
from workers.suspects import Suspects

CONFIG_EXIT_CODE: Final = 78
"""EX_CONFIG of sysexits.h: there is no such repository or model; trying again won't help before somebody changes it."""
BROKER_BACKOFF_S: Final = 0.1
MAX_BROKER_BACKOFF_S: Final = 5.0
MAX_STUCK_THREADS: Final = 2
STUCK_EXIT_CODE: Final = 75
"""EX_TEMPFAIL of sysexits.h: threads hang in models, a new process must take over."""

log = structlog.get_logger()


class Worker:
    """One worker: its models, its presence, its way out."""

    def __init__(
        self,
        settings: WorkerSettings,
        transport: Transport,
        *,
        name: str = "",
        stop: asyncio.Event | None = None,
        load: LoadInstance = load_instance,
        names: ListModels = model_names,
        read: ReadModel = read_model,
        survey: Survey = take_footprint,
        slot: Path | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.name = name or secrets.token_hex(6)
        self.state = "starting"
        self.inline_below_s = settings.inline_below_us / 1e6
        self.exit_code = 0
        self.stop = stop or asyncio.Event()
        self._transport = transport
        self._fences = Fences()
        self.outbox = Outbox(transport, self.name, now_s, settings.broker.blob_max_bytes)
        self.desk = Desk(transport, self._fences, self.outbox, now_s)
        self.gate = Gate()
        self._suspects = Suspects(transport, self.desk, self.gate, settings.group)
        self.presence = self._make_presence(now_s)
        self.control_mode: str = settings.model_control_mode
        self._num_stuck = 0
        self._tasks: set[asyncio.Task[None]] = set()
        around = Surroundings(settings, transport, self, self.presence, load, read, survey, self._persist)
        self.lifecycle = Lifecycle(around, names, self._spawn, slot)
        self._control = Control(settings, transport, self.lifecycle, self.stop, self.presence.beat_soon, slot)
        transport.on_lost(self.desk.drop_lost)
        transport.on_reconnect(lambda: self._spawn(self._ensure_streams()))

    def _make_presence(self, now_s: Callable[[], float]) -> Presence:
        return Presence(
            self._transport,
            self._fences,
            self,
            worker=self.name,
            group=self.settings.group,
            version=package_version(),
            now_s=now_s,
        )

    async def run(self) -> int:
        """Serve until `stop`, then drain; the process's exit code."""
        await self._ensure_streams()
        await self._persist(self.presence.listen, "not-listening")
        suspects = asyncio.create_task(self._suspects.run(self.stop))
        beats = asyncio.create_task(self.presence.run(asyncio.Event()))
        try:
            await self._start_models()
            await self.stop.wait()
            await self._drain(suspects)
        finally:
            for task in (beats, suspects, *self._tasks):
                task.cancel()
            await asyncio.gather(beats, suspects, *self._tasks, return_exceptions=True)
            await asyncio.to_thread(self._control.uploads.clear)
        return self.exit_code

    # -------- what versions see (host.Host)
    def suspect(self, item: WorkItem, run_alone: RunAlone) -> None:
        """Have it run alone when its turn comes."""
        self._suspects.add(item, run_alone)

    def count_stuck_thread(self) -> None:
        """A thread was left behind in a model that does not return; two are too many."""
        self._num_stuck += 1
        if self._num_stuck >= MAX_STUCK_THREADS:
            log.error("too-many-stuck-threads", num=self._num_stuck, exit_code=STUCK_EXIT_CODE)
            self.exit_code = STUCK_EXIT_CODE
            self.stop.set()

    def changed(self) -> None:
        """Something that heartbeats tell changed."""
        self.presence.beat_soon()

    # -------- what presence sees
    def cards(self) -> list[ModelCard]:
        """The models as offered now."""
        return [model.card() for model in self.models.values()]

    def stats(self) -> list[ModelStats]:
        """Their counters and gauges now."""
        return self.desk.with_last_words([stats for model in self.models.values() for stats in model.stats()])

    def unloaded(self) -> dict[str, str]:
        """Models of the repository that are not served, and why."""
        return self.lifecycle.unloaded

    async def control(self, request: ControlRequest) -> ControlReply:
        """Do what an operator asked."""
        return await self._control.answer(request)

    @property
    def models(self) -> dict[str, HostedModel]:
        """As offered now."""
        return self.lifecycle.models

    async def _start_models(self) -> None:
        try:
            await self.lifecycle.prepare()
        except ConfigRefused as e:
            log.error("repository-refused", error=str(e), exit_code=CONFIG_EXIT_CODE)
            self.exit_code = CONFIG_EXIT_CODE
            self.stop.set()
            return
        await self.presence.ask_cancels()
        self.state = "serving"
        self.presence.beat_soon()
        self.lifecycle.start()
        self._spawn(self.lifecycle.poll())

    # -------- the end
    async def _drain(self, suspects: asyncio.Task[None]) -> None:
        timeout_s = self.settings.drain_timeout_s
        until_s = self.desk.now_s() + timeout_s
        log.info("draining", num_open=len(self.desk.open))
        self.state = "draining"
        self.desk.is_draining = True
        self.presence.beat()
        try:
            async with asyncio.timeout(timeout_s + 1.0):
                await self.presence.withdraw_all()
                await asyncio.gather(*(model.stop_lanes() for model in self._all_models))
        except (TransportError, TimeoutError) as e:
            log.warning("lanes-not-stopped", error=str(e) or "time-out")
        self._suspects.hand_back()
        begun = self.desk.begun()
        for model in self._all_models:
            model.hand_back(begun)
        await asyncio.gather(*(model.finish(until_s - self.desk.now_s()) for model in self._all_models))
        await asyncio.wait({suspects, *self.desk.fetches}, timeout=max(0.0, until_s - self.desk.now_s()))
        self._end_the_rest()
        await self.outbox.drain(max(0.5, until_s - self.desk.now_s()))
        self.presence.beat()
        await asyncio.gather(*(model.close() for model in self._all_models))
        log.info("drained")

    @property
    def _all_models(self) -> list[HostedModel]:
        return [*self.models.values(), *self.lifecycle.leaving]

    def _end_the_rest(self) -> None:
        """What did not finish in time: others run it again, unless it must not run twice."""
        for item in list(self.desk.open.values()):
            model = self.models.get(item.model)
            if model is not None and not model.may_retry:
                item.settle(Draining(f"the worker stopped before model {item.model!r} had finished"))
            else:
                self.desk.hand_back(item)

    # -------- the broker
    async def _ensure_streams(self) -> None:
        broker = self.settings.broker
        limits = BrokerLimits(broker.online_max_msgs, broker.online_max_bytes, broker.blob_max_bytes)

        async def ensure() -> None:
            for spec in (online_stream(self.settings.group, limits), blob_stream(limits), started_stream()):
                await self._transport.ensure_stream(spec)

        await self._persist(ensure, "streams-not-ready")

    async def _persist(self, step: Callable[[], Awaitable[None]], event: str) -> None:
        """Try until the broker does it, or this worker stops."""
        backoff = Backoff(BROKER_BACKOFF_S, MAX_BROKER_BACKOFF_S)
        while not self.stop.is_set():
            try:
                await step()
            except TransportError as e:
                pause_s = backoff.pause_s()
                log.warning(event, error=str(e), again_in_s=pause_s)
                await asyncio.sleep(pause_s)
            else:
                return

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task-failed", exc_info=task.exception())
