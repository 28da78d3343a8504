"""One model on one worker: its versions' loading, its lanes, what is said about it. Executes nothing itself.

    UNAVAILABLE <- LOADING -> READY (lanes open, presence announced) -> UNLOADING (lanes stop, work ends) -> gone

A version that fails to load keeps its reason and hurts no other. Lanes `any` are open while any version is ready; the
highest ready one runs what names none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Container
from typing import Final

import structlog

from contract.model_config import ModelCard, ModelConfig, ModelState, ModelStats, VersionState
from contract.subjects import ANY_VERSION, LANES, Lane, LaneAddress
from transport.base import RowWindow, Transport, TransportError
from workers.backoff import Backoff
from workers.host import Host
from workers.inhand import InHand, LanePort
from workers.intake import Intake
from workers.repository.instances import instance_sources
from workers.repository.scan import ModelEntry
from workers.seats import LoadInstance, Seat
from workers.serving import VersionServing
from workers.settings import WorkerSettings
from workers.text.load import load_encoder

WINDOW_MICRO_BATCHES: Final = 2
EAGER_SLACK_ROWS: Final = 16
EAGER_ROWS: Final = 1_024
"""Rows an eager model without `max_queue_size` may have in hand."""
LANE_BACKOFF_S: Final = 0.2
FINISH_POLL_S: Final = 0.01

log = structlog.get_logger()


class HostedModel:
    """One model of the repository as this worker serves it."""

    def __init__(self, entry: ModelEntry, transport: Transport, host: Host, settings: WorkerSettings) -> None:
        self.entry = entry
        self.name = entry.name
        self._transport = transport
        self._host = host
        self._group = settings.group
        self._intra_op_threads = instance_threads(settings, entry)
        self._serving: dict[str, VersionServing] = {}
        self._states: dict[str, VersionState] = {state.version: state for state in entry.unavailable}
        for version in entry.versions:
            self._states[version] = VersionState(version, "LOADING")
        if entry.config is None:
            self._states[""] = VersionState("", "UNAVAILABLE" if entry.reason else "LOADING", entry.reason)
        self._ports: dict[tuple[str, Lane], LanePort] = {}
        self._window: RowWindow | None = None
        self._is_leaving = False
        self._intake = Intake(host.desk, entry.config, self.resolve) if entry.config is not None else None

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs."""
        return all(serving.is_idle for serving in self._serving.values())

    @property
    def may_retry(self) -> bool:
        """Whether a request may run a second time."""
        return self.entry.config is None or self.entry.config.may_retry

    def resolve(self, version: str) -> VersionServing | None:
        """The version that runs a request: the named one, or the highest that is ready."""
        if version:
            return self._serving.get(version)
        return next(iter(self._serving.values()), None)

    def card(self) -> ModelCard:
        """As heartbeats tell it."""
        config = self.entry.config or ModelConfig(name=self.name, backend="")
        states = tuple(self._states.values())
        if self._is_leaving:
            states = tuple(VersionState(s.version, "UNLOADING") if s.state == "READY" else s for s in states)
        return ModelCard(config, states, dict(self.entry.triton_config))

    def stats(self) -> list[ModelStats]:
        """Per ready version; the model's lanes are told with the highest."""
        found = [serving.stats() for serving in self._serving.values()]
        if found:
            lanes = [port.lane for port in self._ports.values() if port.lane is not None]
            found[0].num_credits = sum([lane.num_credits for lane in lanes])
            found[0].num_in_hand = self._window.rows_in_hand if self._window is not None else 0
        return found

    async def load(self, load: LoadInstance, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Load every version, highest first; returns when each is ready or has its reason."""
        for version in self.entry.versions:
            serving = await self._load_version(version, load)
            if serving is None or self._is_leaving:
                continue
            self._serving[version] = serving
            self._serving = dict(sorted(self._serving.items(), key=lambda kv: int(kv[0]), reverse=True))
            self._host.desk.queues.append(serving)
            await self._open_lanes(version)
            self._set_state(version, "READY")
            await on_ready()

    async def stop_lanes(self) -> None:
        """Pull nothing more."""
        self._is_leaving = True
        ports, self._ports = self._ports, {}
        lanes = [port.lane for port in ports.values() if port.lane is not None]
        await asyncio.gather(*(lane.stop() for lane in lanes))

    def hand_back(self, keep: Container[InHand] = ()) -> None:
        """What has not started goes to other workers, but for the requests of messages in `keep`."""
        for serving in self._serving.values():
            serving.hand_back(keep)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until nothing of it is in hand; False if that takes longer."""
        until_s = self._host.desk.now_s() + timeout_s
        while not self.is_idle:
            if self._host.desk.now_s() >= until_s:
                return False
            await asyncio.sleep(FINISH_POLL_S)
        return True

    async def close(self) -> None:
        """Free the instances."""
        servings, self._serving = self._serving, {}
        for version, serving in servings.items():
            self._states.pop(version, None)
            self._host.desk.queues.remove(serving)
            await serving.close()

    async def _load_version(self, version: str, load: LoadInstance) -> VersionServing | None:
        config = self.entry.config
        assert config is not None, "a model without a config has no versions to load"
        assert self._intake is not None
        sources = list(instance_sources(self.entry, version, self._intra_op_threads))
        seats = [Seat(source, load) for source in sources]
        started_s = self._host.desk.now_s()
        outcomes = await asyncio.gather(*(seat.load() for seat in seats), return_exceptions=True)
        try:
            encoder = await load_encoder(config, self.entry.model_dir, version)
        except Exception as e:  # noqa: BLE001 - whatever a tokenizer's file does is this version's reason
            outcomes.append(e)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            reason = str(failures[0]) or type(failures[0]).__name__
            log.error("model-not-loaded", model=self.name, version=version, reason=reason)
            self._set_state(version, "UNAVAILABLE", reason)
            await asyncio.gather(*(seat.close() for seat in seats))
            return None
        took_s = round(self._host.desk.now_s() - started_s, 3)
        log.info("model-loaded", model=self.name, version=version, num_instances=len(seats), took_s=took_s)
        return VersionServing(config, version, seats, self._host, self._intake.as_items, encoder=encoder)

    def _set_state(self, version: str, state: ModelState, reason: str = "") -> None:
        self._states[version] = VersionState(version, state, reason)
        self._host.changed()

    async def _open_lanes(self, version: str) -> None:
        for name in (ANY_VERSION, version):
            for lane in LANES:
                if (name, lane) not in self._ports:
                    await self._open_lane(name, lane)

    async def _open_lane(self, version: str, lane: Lane) -> None:
        """Open one lane, for as long as the broker takes to come back."""
        config, intake = self.entry.config, self._intake
        assert config is not None
        assert intake is not None
        port = self._ports[version, lane] = LanePort()
        address = LaneAddress(self._group, self.name, version, lane)
        if self._window is None:
            self._window = self._transport.row_window(window_rows(config))
        is_always_open = lane == "hi" or has_queue_limit(config)
        backoff = Backoff(LANE_BACKOFF_S)
        while not self._is_leaving:
            try:
                opened = await self._transport.open_lane(
                    address,
                    self._window,
                    lambda delivery: intake.on_delivery(delivery, port),
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


def instance_threads(settings: WorkerSettings, entry: ModelEntry) -> int:
    """CPU threads of one instance: as configured, or an equal share of the cores this process may use."""
    if settings.intra_op_threads:
        return settings.intra_op_threads
    num_instances = entry.config.num_instances if entry.config is not None else 1
    return max(1, len(os.sched_getaffinity(0)) // (settings.num_processes * num_instances))
