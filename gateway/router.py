"""(service, model, version) to the group that serves it, or why it can't be served. Pure; asks only the registry.

Found targets are kept until the registry changes, so that resolving is one dict look-up per request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from contract.errors import Forbidden, HeadraceError, ModelNotReady, NotFound, NoWorker
from contract.model_config import UNLOADED, ModelCard, VersionState
from contract.principal import Principal
from gateway.core import Target
from gateway.registry import Registry
from gateway.settings import ServiceSettings


class Router:
    """Where requests go now."""

    def __init__(
        self,
        services: Mapping[str, ServiceSettings],
        default_service: str,
        registry: Registry,
        now_unix_ms: Callable[[], int],
    ) -> None:
        self._services = services
        self._default_service = default_service
        self._registry = registry
        self._now_unix_ms = now_unix_ms
        self._found: dict[tuple[str, str, str], Target] = {}
        self._found_revision = -1

    @property
    def groups(self) -> list[str]:
        """Every group that a configured service can reach, in order of first mention."""
        found: dict[str, None] = {}
        for service in self._services.values():
            found.update(dict.fromkeys((*service.groups, *service.models.values())))
        return list(found)

    def resolve(self, principal: Principal, service: str, model: str, version: str) -> Target:
        """See `Core.resolve`."""
        # Before anything is looked up: who may not use a name does not learn whether it exists.
        if principal.models is not None and model not in principal.models:
            raise Forbidden(f"key {principal.key_id!r} may not use model {model!r}")
        if self._found_revision != self._registry.revision:
            self._found.clear()
            self._found_revision = self._registry.revision
        name = service or principal.default_service or self._default_service
        target = self._found.get((name, model, version))
        if target is None:
            target = self._find(name, model, version)
            self._found[name, model, version] = target
        return target

    def models(self, service: str) -> list[tuple[str, ModelCard]]:
        """(group, card) of what the service, or with `""` any service, can reach now."""
        reachable: dict[tuple[str, str], ModelCard] = {}
        for name in [service] if service else list(self._services):
            found = self._service(name)
            for group, model in self._registry.cards():
                if group in self._candidates(found, model):
                    reachable[group, model] = self._registry.cards()[group, model]
        return [(group, reachable[group, model]) for group, model in sorted(reachable)]

    def groups_of(self, service: str, model: str) -> Sequence[str]:
        """Groups in which the service, or with `""` the default one, looks the model up, in that order."""
        return self._candidates(self._service(service or self._default_service), model)

    def _service(self, name: str) -> ServiceSettings:
        service = self._services.get(name)
        if service is None:
            raise NotFound(f"service {name!r} is not known")
        return service

    @staticmethod
    def _candidates(service: ServiceSettings, model: str) -> Sequence[str]:
        pinned = service.models.get(model)
        return service.groups if pinned is None else [pinned]

    def _find(self, service: str, model: str, version: str) -> Target:
        groups = self._candidates(self._service(service), model)
        for group in groups:
            card = self._registry.card(group, model)
            if card is not None and (version in card.ready_versions if version else card.ready_versions):
                return Target(service, group, card, version)
        raise self._refusal(groups, model, version)

    def _refusal(self, groups: Sequence[str], model: str, version: str) -> HeadraceError:
        """Why not, from the nearest miss to the farthest: loading or failed, gone, never there."""
        live = [card for g in groups if (card := self._registry.card(g, model)) is not None]
        states = [s for c in live for s in c.versions if s.state != "READY" and version in ("", s.version)]
        if states:
            return ModelNotReady(self._not_ready(model, min(states, key=_nearness)))
        if live and not version:
            return ModelNotReady(f"model {model!r} has no version that is ready")
        unloaded = self._registry.unloaded()
        if reasons := [unloaded[g, model] for g in groups if (g, model) in unloaded]:
            return ModelNotReady(f"model {model!r} is {next(filter(None, reasons), 'not loaded')}")
        known = [card for g in groups if (card := self._registry.remembered(g, model)) is not None]
        if not known:
            return NotFound(f"model {model!r} is not known")
        if version and not any(version == s.version for card in known for s in card.versions):
            there = ", ".join(sorted({s.version for card in known for s in card.versions})) or "none"
            return NotFound(f"model {model!r} has no version {version!r}, it has: {there}")
        return NoWorker(f"no live worker serves model {model!r}" + (f" version {version}" if version else ""))

    def _not_ready(self, model: str, state: VersionState) -> str:
        what = f"model {model!r}" + (f" version {state.version}" if state.version else "")
        if state.state == "LOADING":
            for_s = max(0, self._now_unix_ms() - state.since_unix_ms) // 1000
            what += " is loading" + (f", for {for_s} s so far" if state.since_unix_ms else "")
            return what + (f" (last time: {state.reason})" if state.reason else "")
        return f"{what} is {state.state.lower()}" + (f": {state.reason}" if state.reason else "")


def _nearness(state: VersionState) -> int:
    """What comes soonest is told first, what was dropped on purpose last."""
    order = ("LOADING", "UNLOADING", "UNAVAILABLE")
    return order.index(state.state) + (state.reason == UNLOADED)
