"""Who is alive and what they serve, learnt from heartbeats. Subscribes to nothing; every call takes the time.

A worker is dead after `DEAD_AFTER_S` without a heartbeat, and a model is unserved at once when nobody answers on its
presence subject. What was ever served is remembered, so that "nobody serves it now" reads unlike "never heard of it".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from contract.messages import GatewayBeat, WorkerBeat
from contract.model_config import UNLOADED, ModelCard, ModelState, VersionState
from contract.streams import BEAT_S, DEAD_AFTER_S
from gateway.ledger import Ledger

MAX_REMEMBERED: Final = 10_000
"""Models kept in memory after their last worker went; the oldest are forgotten first."""
LATE_AFTER_S: Final = 1.5 * BEAT_S
"""A worker this long silent is asked for on its models' presence subjects."""

_RANK: Final[dict[ModelState, int]] = {"READY": 3, "LOADING": 2, "UNLOADING": 1, "UNAVAILABLE": 0}

ModelKey = tuple[str, str]
"""(group, model)"""


@dataclass(slots=True)
class WorkerView:
    """One live worker: its last heartbeat, when it came, and models that nobody answered for since."""

    beat: WorkerBeat
    seen_s: float
    unserved: set[str] = field(default_factory=set)

    @property
    def is_serving(self) -> bool:
        """Whether new requests may count on it; one that drains hands back what it holds."""
        return self.beat.state != "draining"


class Registry:
    """Live workers and gateways; `revision` changes whenever routing could."""

    def __init__(self) -> None:
        self.revision = 0
        self.ledger = Ledger()
        self._workers: dict[str, WorkerView] = {}
        self._gateways: dict[str, tuple[GatewayBeat, float]] = {}
        self._remembered: dict[ModelKey, ModelCard] = {}
        self._cards: dict[ModelKey, ModelCard] = {}
        self._cards_revision = 0

    # ------------------------------------------------------------------ what is heard

    def on_worker_beat(self, beat: WorkerBeat, now_s: float) -> None:
        """Take a worker's heartbeat."""
        view = self._workers.get(beat.worker)
        is_news = view is None or bool(view.unserved) or _routing_of(view.beat) != _routing_of(beat)
        self._workers[beat.worker] = WorkerView(beat, now_s)
        self.ledger.hear(beat)
        if is_news:
            self.revision += 1
            for card in beat.models:
                self._remembered.setdefault((beat.group, card.config.name), card)

    def on_gateway_beat(self, beat: GatewayBeat, now_s: float) -> None:
        """Take a gateway's heartbeat, our own included."""
        self._gateways[beat.gateway] = (beat, now_s)

    def on_no_responders(self, group: str, model: str) -> bool:
        """Nobody answers for this model: it is unserved until the next heartbeat. True if that was news."""
        is_news = False
        for view in self._workers.values():
            offers = any(card.config.name == model for card in view.beat.models)
            if view.beat.group == group and offers and model not in view.unserved:
                view.unserved.add(model)
                is_news = True
        if is_news:
            self.revision += 1
        return is_news

    def sweep(self, now_s: float) -> list[WorkerBeat]:
        """Forget who is dead; returns the last heartbeat of each worker that died."""
        dead = [view.beat for view in self._workers.values() if now_s - view.seen_s > DEAD_AFTER_S]
        for beat in dead:
            del self._workers[beat.worker]
            self.ledger.bury(beat)
        if dead:
            self.revision += 1
        for name in [n for n, (_, seen_s) in self._gateways.items() if now_s - seen_s > DEAD_AFTER_S]:
            del self._gateways[name]
        return dead

    def forgive(self, now_s: float) -> None:
        """We were away, not they: everybody counts as heard now."""
        for view in self._workers.values():
            view.seen_s = now_s
        self._gateways = {name: (beat, now_s) for name, (beat, _) in self._gateways.items()}

    # ------------------------------------------------------------------ what is known

    def card(self, group: str, model: str) -> ModelCard | None:
        """The model as its live workers offer it together, or None if none does."""
        return self.cards().get((group, model))

    def remembered(self, group: str, model: str) -> ModelCard | None:
        """The model as it was last offered, live or not."""
        self.cards()
        return self._remembered.get((group, model))

    def cards(self) -> dict[ModelKey, ModelCard]:
        """Every model that a live worker offers, in whatever state."""
        if self._cards_revision != self.revision:
            self._cards = self._merge_all()
            self._cards_revision = self.revision
            for key, card in self._cards.items():
                self._remembered.pop(key, None)
                self._remembered[key] = card
            while len(self._remembered) > max(MAX_REMEMBERED, len(self._cards)):
                del self._remembered[next(iter(self._remembered))]
        return self._cards

    def unloaded(self) -> dict[ModelKey, str]:
        """Models that live workers know, serve nowhere, and why; the reason is empty for one that was never loaded."""
        cards, found = self.cards(), dict[ModelKey, str]()
        for view in self._workers.values():
            for model, reason in view.beat.unloaded.items():
                key = (view.beat.group, model)
                if key not in cards and not found.get(key):
                    found[key] = reason
        return found

    def unloaded_versions(self) -> dict[ModelKey, frozenset[str]]:
        """What workers say they have unloaded and none serves, loads or finishes: version digits, and `""` where nobody
        is left for a request that names none.
        """
        said = {key: {""} for key, reason in self.unloaded().items() if reason}
        alive: dict[ModelKey, set[str]] = {}
        for view in self._workers.values():
            for card in view.beat.models:
                key = (view.beat.group, card.config.name)
                for state in card.versions:
                    if state.state != "UNAVAILABLE":
                        alive.setdefault(key, set()).update((state.version, ""))
                    elif state.reason == UNLOADED:
                        said.setdefault(key, set()).update((state.version, ""))
        return {key: gone for key, found in said.items() if (gone := frozenset(found - alive.get(key, set())))}

    def late(self, now_s: float) -> set[ModelKey]:
        """Models of workers whose heartbeat is overdue: worth asking whether anybody still answers for them."""
        return {
            (view.beat.group, card.config.name)
            for view in self._workers.values()
            if now_s - view.seen_s > LATE_AFTER_S
            for card in view.beat.models
            if card.config.name not in view.unserved
        }

    def workers(self) -> list[WorkerBeat]:
        """Last heartbeat of each live worker, by name."""
        return [self._workers[name].beat for name in sorted(self._workers)]

    def gateways(self) -> list[GatewayBeat]:
        """Last heartbeat of each live gateway, by name."""
        return [self._gateways[name][0] for name in sorted(self._gateways)]

    def _merge_all(self) -> dict[ModelKey, ModelCard]:
        offers: dict[ModelKey, list[tuple[WorkerBeat, ModelCard]]] = {}
        for view in self._workers.values():
            if not view.is_serving:
                continue
            for card in view.beat.models:
                if card.config.name not in view.unserved:
                    offers.setdefault((view.beat.group, card.config.name), []).append((view.beat, card))
        return {key: _merge(found) for key, found in offers.items()}


def _routing_of(beat: WorkerBeat) -> tuple[object, ...]:
    return beat.state, beat.models, beat.unloaded


def _merge(offers: list[tuple[WorkerBeat, ModelCard]]) -> ModelCard:
    """One card of several workers': a version is in its best state anywhere, the config is the youngest ready one's."""
    states: dict[str, VersionState] = {}
    for _, card in offers:
        for state in card.versions:
            known = states.get(state.version)
            # Of two alike the one with a reason: what one worker could not load must be seen.
            if known is None or (_RANK[state.state], bool(state.reason)) > (_RANK[known.state], bool(known.reason)):
                states[state.version] = state
    _, best = max(offers, key=lambda o: (bool(o[1].ready_versions), o[0].started_unix_ms, o[0].worker))
    versions = tuple(states[v] for v in sorted(states, key=_version_order))
    return ModelCard(best.config, versions, best.triton_config)


def _version_order(version: str) -> tuple[int, str]:
    return (int(version) if version.isdecimal() else -1, version)
