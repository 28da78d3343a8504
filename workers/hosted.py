"""One model on one worker: its versions' loading, its lanes, what is said about it. Executes nothing itself.

    UNAVAILABLE <- LOADING -> READY (lanes open, presence announced) -> UNLOADING (lanes stop, work ends) -> UNAVAILABLE

A version that fails to load keeps its reason and hurts no other; one that is loaded anew serves until its successor is
ready. Lanes `any` are open while any version is ready; the default one, else the highest that is ready, runs what names
none. A changed config is another HostedModel, made ready beside this one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Container
from typing import Final

import structlog

from contract.model_config import UNLOADED, ModelCard, ModelConfig, ModelState, ModelStats, VersionState
from contract.subjects import ANY_VERSION
from transport.base import Transport
from workers.host import Host
from workers.inhand import InHand
from workers.intake import Intake
from workers.lanes import ModelLanes
from workers.repository.instances import instance_sources
from workers.repository.parameters import DEFAULT_VERSION
from workers.repository.scan import ModelEntry
from workers.seats import LoadInstance, Seat
from workers.serving import VersionServing
from workers.settings import WorkerSettings
from workers.text.load import load_encoder

FINISH_POLL_S: Final = 0.01

log = structlog.get_logger()


class HostedModel:
    """One model of the repository as this worker serves it."""

    def __init__(self, entry: ModelEntry, transport: Transport, host: Host, settings: WorkerSettings) -> None:
        self.entry = entry
        self.name = entry.name
        self._host = host
        self._drain_timeout_s = settings.drain_timeout_s
        self._intra_op_threads = instance_threads(settings, entry)
        self._serving: dict[str, VersionServing] = {}
        self._retiring: list[VersionServing] = []
        self._states: dict[str, VersionState] = {state.version: state for state in entry.unavailable}
        for version in entry.versions:
            self._states[version] = self._state(version, "LOADING")
        if entry.config is None:
            self._states[""] = self._state("", "UNAVAILABLE" if entry.reason else "LOADING", entry.reason)
        self._is_leaving = False
        self._default_version = entry.config.parameters.get(DEFAULT_VERSION, "") if entry.config is not None else ""
        self._intake: Intake | None = None
        self._lanes: ModelLanes | None = None
        if entry.config is not None:
            self._intake = Intake(host.desk, entry.config, self.resolve)
            self._lanes = ModelLanes(settings.group, entry.config, transport, self._intake.on_delivery)

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs."""
        return all(serving.is_idle for serving in self._all)

    @property
    def _all(self) -> list[VersionServing]:
        return [*self._serving.values(), *self._retiring]

    @property
    def serving_versions(self) -> tuple[str, ...]:
        """Loaded ones, highest first."""
        return tuple(self._serving)

    @property
    def may_retry(self) -> bool:
        """Whether a request may run a second time."""
        return self.entry.config is None or self.entry.config.may_retry

    def reason_of(self, version: str) -> str:
        """Why it does not serve, or not as the folder has it; empty where all is well."""
        state = self._states.get(version)
        return state.reason if state is not None else ""

    def resolve(self, version: str) -> VersionServing | None:
        """The version that runs a request: the named one; else the default that the config names, else the highest."""
        if version:
            return self._serving.get(version)
        if self._default_version in self._serving:
            return self._serving[self._default_version]
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
        if found and self._lanes is not None:
            found[0].num_credits = self._lanes.num_credits
            found[0].num_in_hand = self._lanes.rows_in_hand
        return found

    # -------- what it serves
    async def reach(
        self,
        load: LoadInstance,
        on_ready: Callable[[], Awaitable[None]] | None,
        *,
        stale: Collection[str] = (),
        gone: Collection[str] = (),
    ) -> None:
        """Come to serve what `entry` wants: its versions, and a fallback for each that fails; then drop the rest.

        `stale` ones are loaded anew. Without `on_ready` no lane opens, until `open`. What is not wanted any more goes
        when everything wanted is there, what is `gone` from the disk goes in any case.
        """
        # The default one first: until it is ready others answer what names none.
        wanted = sorted(self.entry.versions, key=lambda version: version != self._default_version)
        keep, num_missing = set[str](), len(wanted)
        for version in (*wanted, *self.entry.fallbacks):
            if self._is_leaving or not num_missing:
                break
            if version not in self._serving or version in stale:
                await self._add(version, load, on_ready)
            if version in self._serving:
                keep.add(version)
                num_missing -= 1
        for version in [v for v in self._serving if v in gone or (v not in keep and not num_missing)]:
            await self.drop(version)
        self._forget_states(gone)

    async def open(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        """Take requests for everything that is loaded."""
        for version in self._serving:
            await self._open_lanes(version)
            self._set_state(version, "READY")
        await on_ready()

    async def drop(self, version: str) -> None:
        """Stop serving it: its lanes stop, what is in hand ends."""
        self._set_state(version, "UNLOADING")
        names = (version, ANY_VERSION) if len(self._serving) == 1 else (version,)
        if self._lanes is not None:
            await self._lanes.stop(*names)
        await self._retire(self._serving.pop(version))
        log.info("model-unloaded", model=self.name, version=version)
        self._set_state(version, "UNAVAILABLE", UNLOADED)

    def tell(self, reason: str, versions: Collection[str]) -> None:
        """Say of each version why it does not serve or, where it does, why what its folder holds does not."""
        for version in versions:
            self._set_state(version, "READY" if version in self._serving else "UNAVAILABLE", reason)

    # -------- the end of it
    async def stop_lanes(self) -> None:
        """Pull nothing more."""
        self._is_leaving = True
        if self._lanes is not None:
            await self._lanes.leave()

    def hand_back(self, keep: Container[InHand] = ()) -> None:
        """What has not started goes to other workers, but for the requests of messages in `keep`."""
        for serving in self._all:
            serving.hand_back(keep)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until nothing of it is in hand; False if that takes longer."""
        return await self._wait_idle(self._all, timeout_s)

    async def close(self) -> None:
        """Free the instances."""
        servings, self._serving = self._serving, {}
        for version, serving in servings.items():
            self._states.pop(version, None)
            self._discard(serving)
            await serving.close()

    async def _retire(self, serving: VersionServing) -> None:
        """Let it finish what it has, then free it."""
        self._retiring.append(serving)
        if not await self._wait_idle([serving], self._drain_timeout_s):
            serving.hand_back()
        self._host.desk.outbox.flush()
        self._discard(serving)
        await serving.close()
        self._retiring.remove(serving)

    def _discard(self, serving: VersionServing) -> None:
        queues = self._host.desk.queues
        if serving in queues:
            queues.remove(serving)

    async def _wait_idle(self, servings: Collection[VersionServing], timeout_s: float) -> bool:
        until_s = self._host.desk.now_s() + timeout_s
        while not all(serving.is_idle for serving in servings):
            if self._host.desk.now_s() >= until_s:
                return False
            await asyncio.sleep(FINISH_POLL_S)
        return True

    # -------- loading
    async def _add(self, version: str, load: LoadInstance, on_ready: Callable[[], Awaitable[None]] | None) -> None:
        """Load it; ready, it takes its predecessor's place."""
        old = self._serving.get(version)
        if old is None:
            reason = self.reason_of(version)
            self._set_state(version, "LOADING", "" if reason == UNLOADED else reason)
        serving = await self._load_version(version, load)
        if serving is None:
            return
        if self._is_leaving:
            await serving.close()
            return
        self._serving[version] = serving
        self._serving = dict(sorted(self._serving.items(), key=lambda kv: int(kv[0]), reverse=True))
        self._host.desk.queues.append(serving)
        if on_ready is not None:
            await self._open_lanes(version)
            self._set_state(version, "READY")
            await on_ready()
        if old is not None:
            await self._retire(old)

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
            self._set_state(version, "READY" if version in self._serving else "UNAVAILABLE", reason)
            await asyncio.gather(*(seat.close() for seat in seats))
            return None
        took_s = round(self._host.desk.now_s() - started_s, 3)
        log.info("model-loaded", model=self.name, version=version, num_instances=len(seats), took_s=took_s)
        as_items, lanes = self._intake.as_items, self._lanes
        assert lanes is not None

        def limit(max_rows: int | None) -> None:
            lanes.limit(version, max_rows)

        return VersionServing(config, version, seats, self._host, as_items, encoder=encoder, limit=limit)

    async def _open_lanes(self, version: str) -> None:
        assert self._lanes is not None, "a model without a config has no versions to load"
        await self._lanes.open(ANY_VERSION, version)

    def _set_state(self, version: str, state: ModelState, reason: str = "") -> None:
        self._states[version] = self._state(version, state, reason)
        self._host.changed()

    def _state(self, version: str, state: ModelState, reason: str = "") -> VersionState:
        if state != "LOADING":
            return VersionState(version, state, reason)
        desk, known = self._host.desk, self._states.get(version)
        since_ms = known.since_unix_ms if known is not None and known.state == "LOADING" else 0
        return VersionState(version, state, reason, since_ms or desk.clock.now_ms(desk.now_s()))

    def _forget_states(self, gone: Collection[str]) -> None:
        """Versions that failed and have no folder any more; what is in `gone` served and stays told as unloaded."""
        known = {*self.entry.versions, *self.entry.fallbacks, *self._serving, *gone}
        known.update(state.version for state in self.entry.unavailable)
        for version, state in list(self._states.items()):
            if version not in known and state.reason != UNLOADED:
                del self._states[version]


def instance_threads(settings: WorkerSettings, entry: ModelEntry) -> int:
    """CPU threads of one instance: as configured, or an equal share of the cores this process may use."""
    if settings.intra_op_threads:
        return settings.intra_op_threads
    num_instances = entry.config.num_instances if entry.config is not None else 1
    return max(1, len(os.sched_getaffinity(0)) // (settings.num_processes * num_instances))
