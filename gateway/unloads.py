"""Ends requests that wait for a model or version that every worker has unloaded: 503 at once, not 504 at the deadline.

Only what workers *say* they unloaded: one that died or restarts comes back, and what waits for it is answered then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from contract.errors import ModelNotReady
from gateway.coalescer import ModelWatch
from gateway.inflight import Inflight
from gateway.registry import ModelKey, Registry

SETTLE_S: Final = 0.5
"""After the last worker said so: answers that were on their way have come by then."""

log = structlog.get_logger("gateway.unloads")


class Unloads:
    """Looks at each revision of the registry, and ends what nobody will answer."""

    def __init__(self, registry: Registry, inflight: Inflight, watches: Callable[[], Iterable[ModelWatch]]) -> None:
        self._registry = registry
        self._inflight = inflight
        self._watches = watches
        self._revision = -1
        self._gone: dict[ModelKey, frozenset[str]] = {}
        self._since_s: dict[tuple[ModelKey, str], float] = {}

    def tick(self, now_s: float) -> int:
        """Called often; how many it ended."""
        if self._revision != self._registry.revision:
            self._revision = self._registry.revision
            self._gone = self._registry.unloaded_versions()
            gone = [(key, version) for key, versions in self._gone.items() for version in versions]
            self._since_s = {each: self._since_s.get(each, now_s) for each in gone}
        if not self._gone:
            return 0
        return sum([self._end(watch, now_s) for watch in self._watches() if watch.num_open])

    def _end(self, watch: ModelWatch, now_s: float) -> int:
        key = (watch.group, watch.model)
        versions = {v for v in self._gone.get(key, ()) if now_s - self._since_s[key, v] >= SETTLE_S}
        if not versions:
            return 0
        is_whole = self._registry.card(*key) is None
        entries = [e for e in self._inflight.entries() if e.lane.watch is watch]
        num_ended = 0
        for entry in entries:
            version = entry.lane.version
            if is_whole or version in versions:
                what = f"model {watch.model!r}" + (f" version {version}" if version else "")
                num_ended += self._inflight.end(entry, ModelNotReady(f"{what} was unloaded before this request ran"))
        if num_ended:
            log.info("unloaded-under-requests", group=watch.group, model=watch.model, num_requests=num_ended)
        return num_ended
