"""All models of one worker, kept to what its repository holds and operators ask: load, unload, poll, try again.

    start ----> begin each model --------------+
    poll -----> folder changed? ---------------+--> the model's own step (modellife.py)
    control --> load, unload ------------------+        `-> something wanted failed -> again after a pause

No model waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final

import structlog

from contract.model_config import UNLOADED
from workers.backoff import Backoff
from workers.hosted import HostedModel
from workers.modellife import ModelLife, Surroundings
from workers.repository.footprint import Footprint
from workers.repository.read import ALL_MODELS
from workers.repository.refusal import ConfigRefused
from workers.repository.saved import Source, read_saved, save

FIRST_RETRY_S: Final = 2.0
MAX_RETRY_S: Final = 60.0
STILL_S: Final = 0.5
"""A folder that changed is left until it has been still for so long: somebody may be copying."""
MAX_REMEMBERED: Final = 1_000
"""Models not served that heartbeats tell by name."""

ListModels = Callable[[Path, Sequence[str]], list[str]]
Spawn = Callable[[Coroutine[object, object, None]], None]

log = structlog.get_logger()


class Lifecycle:
    """Which models there are, and when each takes a step."""

    def __init__(self, around: Surroundings, names: ListModels, spawn: Spawn, slot: Path | None = None) -> None:
        """`slot`: where what was loaded on request is kept for this worker's successor."""
        self._around = around
        self._slot = slot
        self._settings = around.settings
        self._names = names
        self._spawn = spawn
        self._lives: dict[str, ModelLife] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._known: list[str] = []
        self._unloaded: dict[str, str] = {}

    @property
    def models(self) -> dict[str, HostedModel]:
        """As offered now."""
        return {name: life.hosted for name, life in self._lives.items()}

    @property
    def leaving(self) -> list[HostedModel]:
        """Replaced ones that finish what they have."""
        return [life.leaving for life in self._lives.values() if life.leaving is not None]

    @property
    def unloaded(self) -> dict[str, str]:
        """Models that could be served and are not, and why; empty for one that was never loaded."""
        found = dict.fromkeys(self._known, "") | self._unloaded
        return {name: reason for name, reason in found.items() if name not in self._lives}

    # -------- at the start
    async def prepare(self) -> None:
        """Find what to load at the start and show it as loading.

        Raises:
            ConfigRefused: no such repository, or not one of the models that the settings name.
        """
        path, wanted = self._settings.model_repository, self._settings.models
        if self._settings.model_control_mode == "explicit":
            self._known = (await asyncio.to_thread(self._names, path, []))[:MAX_REMEMBERED]
            if await self._take_up() or not wanted:
                return
        for name in await asyncio.to_thread(self._names, path, wanted):
            self._begin(name)

    async def _take_up(self) -> bool:
        """Begin what this worker's predecessor had loaded; False if there was none."""
        saved = None if self._slot is None else await asyncio.to_thread(read_saved, self._slot)
        for name, source in (saved or {}).items():
            life = self._begin(name)
            life.model_dir, life.config = Path(source.model_dir), source.config
        return saved is not None

    async def _save(self) -> None:
        if self._slot is not None:
            models = {name: Source(str(life.model_dir.absolute()), life.config) for name, life in self._lives.items()}
            await asyncio.to_thread(save, self._slot, models)

    def start(self) -> None:
        """Load what `prepare` found."""
        for life in self._lives.values():
            self._spawn(self._refresh(life, looks=True))

    # -------- the repository
    async def poll(self) -> None:
        """Follow the repository, or in explicit mode only the names in it, until cancelled."""
        mode = self._settings.model_control_mode
        while mode != "none":
            await asyncio.sleep(self._settings.repository_poll_s)
            try:
                await (self._follow() if mode == "poll" else self._list())
            except (ConfigRefused, OSError) as e:
                # A share that is away for a moment must not unload everything.
                log.warning("repository-not-read", error=str(e))

    async def _list(self) -> None:
        known = (await asyncio.to_thread(self._names, self._settings.model_repository, []))[:MAX_REMEMBERED]
        if known != self._known:
            self._known = known
            self._around.host.changed()

    async def _follow(self) -> None:
        changed = await asyncio.to_thread(self._look)
        if not changed:
            return
        await asyncio.sleep(STILL_S)
        again = await asyncio.to_thread(self._look)
        for name in [n for n, footprint in changed.items() if n in again and again[n] == footprint]:
            life = self._lives.get(name) or self._begin(name)
            if not life.lock.locked():  # else the next look finds it changed still
                self._spawn(self._refresh(life, looks=True) if again[name] is not None else self._leave(life))

    def _look(self) -> dict[str, Footprint | None]:
        """Blocks. What is not as last acted upon; None for what is gone."""
        path, wanted = self._settings.model_repository, self._settings.models
        names = [n for n in self._names(path, []) if not wanted or ALL_MODELS in wanted or n in wanted]
        lives = dict(self._lives)
        found: dict[str, Footprint | None] = {name: None for name in lives if name not in names}
        for name in names:
            footprint = self._around.survey(path / name)
            if footprint is not None and (name not in lives or lives[name].seen != footprint):
                found[name] = footprint
        return found

    # -------- on request
    async def load(self, name: str, config: str = "", model_dir: Path | None = None) -> tuple[str, Path]:
        """Load it, or load it anew, from its folder or `model_dir`: why it does not serve so (empty when it does), and
        the folder that is not needed any more, if it is none of the repository's.

        Raises:
            ConfigRefused: there is no such model.
        """
        if model_dir is None:
            await asyncio.to_thread(self._names, self._settings.model_repository, [name])
            model_dir = self._settings.model_repository / name
        while True:  # ends: each turn waits for an unload that was under way
            life = self._lives.get(name) or self._begin(name)
            async with life.lock:
                if self._lives.get(name) is not life:
                    continue
                before = life.model_dir, life.config
                life.model_dir, life.config = model_dir, config
                reason = await life.step(looks=True, is_forced=True)
                if not reason:
                    await self._save()
                if reason and life.hosted.serving_versions:
                    life.model_dir, life.config = before
                    return reason, model_dir
                return reason, before[0]

    async def unload(self, name: str) -> tuple[bool, Path] | None:
        """Stop serving it: whether all it had was finished, and the folder it came from. None if it is not here."""
        if (life := self._lives.get(name)) is None:
            return None
        has_finished = await self._end(life)
        await self._save()
        return has_finished, life.model_dir

    async def _leave(self, life: ModelLife) -> None:
        await self._end(life)

    async def _end(self, life: ModelLife) -> bool:
        async with life.lock:
            if self._lives.get(life.name) is not life:
                return True
            has_finished = await life.end()
            del self._lives[life.name]
            self._backoffs.pop(life.name, None)
            self._unloaded.pop(life.name, None)
            self._unloaded[life.name] = UNLOADED
            if len(self._unloaded) > MAX_REMEMBERED:
                del self._unloaded[next(iter(self._unloaded))]
            self._around.host.changed()
        return has_finished

    # -------- steps
    def _begin(self, name: str) -> ModelLife:
        life = self._lives[name] = ModelLife(name, self._settings.model_repository / name, self._around)
        self._around.host.changed()
        return life

    async def _refresh(self, life: ModelLife, *, looks: bool) -> None:
        async with life.lock:
            if self._lives.get(life.name) is not life:
                return
            if await life.step(looks=looks):
                self._try_again(life)
            else:
                self._backoffs.pop(life.name, None)

    def _try_again(self, life: ModelLife) -> None:
        backoff = self._backoffs.setdefault(life.name, Backoff(FIRST_RETRY_S, MAX_RETRY_S))
        pause_s, turn = backoff.pause_s(), life.turn
        log.info("model-load-again", model=life.name, in_s=pause_s)

        async def again() -> None:
            await asyncio.sleep(pause_s)
            if life.turn == turn:
                await self._refresh(life, looks=self._settings.model_control_mode == "poll")

        self._spawn(again())
