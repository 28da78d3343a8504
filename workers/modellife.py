"""One model's course through a worker: a step brings it to what its folder holds, the end unloads it.

    read the folder -> compare with what serves -> load beside it -> swap -> what was replaced finishes and goes

One step at a time. What a step could not load is told as the reason of its version; when to try again, lifecycle.py
decides.

Invariants: what serves is given up only for a successor that is ready, or when its folder is gone or an operator says
so (tests/integration/test_worker_lifecycle.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from contract.model_config import UNLOADED
from contract.subjects import ANY_VERSION, LANES, LaneAddress, alive_subject
from transport.base import BrokerTimeout, NoResponders, Transport, TransportError
from workers.host import Host
from workers.hosted import HostedModel
from workers.presence import Presence
from workers.repository.footprint import Footprint
from workers.repository.lifecycle import Loaded, find_change, may_take_over
from workers.repository.scan import ModelEntry
from workers.seats import LoadInstance
from workers.settings import WorkerSettings

ASK_OTHERS_S: Final = 0.5

Survey = Callable[[Path], Footprint | None]

log = structlog.get_logger()


class ReadModel(Protocol):
    """Reads a model's folder, with another config if one is given."""

    def __call__(self, model_dir: Path, config: str = "") -> ModelEntry:
        """Blocks; never raises for what is in it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every model of a worker is given."""

    settings: WorkerSettings
    transport: Transport
    host: Host
    presence: Presence
    load: LoadInstance
    read: ReadModel
    survey: Survey
    persist: Callable[[Callable[[], Awaitable[None]], str], Awaitable[None]]
    """Tries until the broker does it."""


class ModelLife:
    """One model."""

    def __init__(self, name: str, model_dir: Path, around: Surroundings) -> None:
        self.name = name
        self.model_dir = model_dir
        self.config = ""
        """In place of the folder's own; empty for that."""
        self.lock = asyncio.Lock()
        """Held by whoever calls `step` or `end`."""
        self.turn = 0
        """Counts steps: a retry that comes after another step is void."""
        self.seen: Footprint | None = None
        """The folder as last acted upon."""
        self.leaving: HostedModel | None = None
        """A replaced one that finishes what it has."""
        self._around = around
        self._loaded: dict[str, Footprint] = {}
        """By version that serves: the folder it was loaded from."""
        self.hosted = self._host(ModelEntry(name, model_dir, None, {}))

    async def step(self, *, looks: bool, is_forced: bool = False) -> str:
        """Come to serve what the folder holds; why that failed, empty when all that is wanted serves.

        Without `looks` a model that serves is not read again: only what failed is tried once more.
        """
        self.turn += 1
        if self.hosted.serving_versions and not looks:
            await self._reach(self.hosted, self.seen or Footprint())
            return self._why_not()
        footprint = await asyncio.to_thread(self._around.survey, self.model_dir) or Footprint()
        entry = await asyncio.to_thread(self._around.read, self.model_dir, self.config)
        self.seen = footprint
        for note in entry.notes:
            log.info("ignored-in-repository", model=self.name, note=note)
        if entry.config is None:
            log.error("model-not-loaded", model=self.name, reason=entry.reason)
        if self.hosted.serving_versions:
            await self._change(entry, footprint, is_forced=is_forced)
        else:
            self.hosted = self._host(entry)
            self._around.host.changed()
            await self._reach(self.hosted, footprint)
        return (entry.reason or "no version is ready") if entry.config is None else self._why_not()

    async def end(self) -> bool:
        """Unload it: lanes stop, what is in hand is finished or, after `drain_timeout_s`, handed back (False)."""
        self.turn += 1
        versions = self.hosted.serving_versions
        await self._around.presence.withdraw(self.name)
        has_finished = await self._let_go(self.hosted)
        await self._forget_lanes([ANY_VERSION, *versions] if versions else [])
        log.info("model-unloaded", model=self.name)
        return has_finished

    # -------- steps
    async def _change(self, entry: ModelEntry, footprint: Footprint, *, is_forced: bool) -> None:
        """It serves, and its folder was read anew."""
        hosted = self.hosted
        versions = {v: self._loaded[v].versions.get(v, ()) for v in hosted.serving_versions}
        shared = self._loaded[hosted.serving_versions[0]].shared
        change = find_change(Loaded(hosted.entry, shared, versions), entry, footprint, is_forced=is_forced)
        if change.is_kept:
            for version in change.gone:
                await hosted.drop(version)
            hosted.tell(entry.reason, hosted.serving_versions)
            await self._settle(hosted, change.gone)
        elif change.is_replaced:
            await self._replace(entry, footprint)
        else:
            hosted.entry = entry
            hosted.tell("", [v for v in hosted.serving_versions if v not in change.stale])
            await self._reach(hosted, footprint, stale=change.stale, gone=change.gone)

    async def _reach(self, hosted: HostedModel, footprint: Footprint, **which: Any) -> None:
        before = {version: hosted.resolve(version) for version in hosted.serving_versions}
        if hosted.entry.config is not None:
            await hosted.reach(self._around.load, self._announce, **which)
        after = hosted.serving_versions
        self._loaded.update({v: footprint for v in after if before.get(v) is not hosted.resolve(v)})
        await self._settle(hosted, [version for version in before if version not in after])

    async def _replace(self, entry: ModelEntry, footprint: Footprint) -> None:
        """Load everything beside what serves, and swap at once, or stay."""
        old, new = self.hosted, self._host(entry)
        await new.reach(self._around.load, None)
        serving, ready = old.serving_versions, new.serving_versions
        if not may_take_over(serving, entry.versions, ready):
            reasons = {v: why for v in (*entry.versions, *entry.fallbacks) if (why := new.reason_of(v))}
            await new.close()
            words = "; ".join(f"version {v}: {why}" for v, why in reasons.items())
            old.tell(f"serves as before, the changed model does not load: {words}", serving)
            for version, why in reasons.items():
                old.tell(why, {version}.difference(serving))
            return
        await new.open(self._announce)
        self.hosted, self.leaving = new, old
        dropped = [version for version in serving if version not in ready]
        self._loaded = dict.fromkeys(ready, footprint)
        new.tell(UNLOADED, dropped)
        try:
            await self._let_go(old)
        finally:
            self.leaving = None
        log.info("model-replaced", model=self.name, versions=list(ready))
        await self._settle(new, dropped)

    async def _let_go(self, hosted: HostedModel) -> bool:
        await hosted.stop_lanes()
        has_finished = await hosted.finish(self._around.settings.drain_timeout_s)
        if not has_finished:
            hosted.hand_back()
        self._around.host.desk.outbox.flush()
        await hosted.close()
        return has_finished

    def _why_not(self) -> str:
        wanted = dict.fromkeys((*self.hosted.entry.versions, *self.hosted.serving_versions))
        reasons = {version: self.hosted.reason_of(version) for version in wanted}
        return "; ".join(f"version {v}: {why}" for v, why in reasons.items() if why and why != UNLOADED)

    def _host(self, entry: ModelEntry) -> HostedModel:
        return HostedModel(entry, self._around.transport, self._around.host, self._around.settings)

    # -------- what the broker is told
    async def _announce(self) -> None:
        await self._around.persist(lambda: self._around.presence.announce(self.name), "not-announced")

    async def _settle(self, hosted: HostedModel, dropped: Collection[str]) -> None:
        """Presence and the broker's consumers follow what serves."""
        for version in dropped:
            self._loaded.pop(version, None)
        if dropped and not hosted.serving_versions:
            await self._around.presence.withdraw(self.name)
            dropped = [*dropped, ANY_VERSION]
        await self._forget_lanes(list(dropped))
        self._around.host.changed()

    async def _forget_lanes(self, versions: Sequence[str]) -> None:
        """Delete the consumers of lanes that nobody pulls from any more; one deleted too early is made anew."""
        group, transport = self._around.settings.group, self._around.transport
        for version in versions:
            payload = b"" if version == ANY_VERSION else version.encode()
            try:
                await transport.request(alive_subject(group, self.name), payload, ASK_OTHERS_S)
            except (NoResponders, BrokerTimeout):
                await self._delete_consumers(version)
            except TransportError as e:
                log.warning("others-not-asked", model=self.name, error=str(e))

    async def _delete_consumers(self, version: str) -> None:
        for lane in LANES:
            address = LaneAddress(self._around.settings.group, self.name, version, lane)
            try:
                await self._around.transport.delete_consumer(address.stream, address.consumer)
            except TransportError as e:
                log.warning("consumer-not-deleted", consumer=address.consumer, error=str(e))
