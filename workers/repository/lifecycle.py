"""What a change in a model's folder means for the versions that serve. Pure: reads and loads nothing.

    config or shared files changed  -> everything the policy wants is loaded beside what serves, and takes over at once
    a version's own files changed   -> that version is loaded anew and takes its own place
    a version folder is gone        -> it is dropped
    the config can't be read        -> what serves goes on, and says why it is not what the folder holds

Invariants: what serves is never given up before its successor is ready (tests/unit/test_lifecycle.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workers.repository.footprint import Footprint, Prints
from workers.repository.scan import ModelEntry


@dataclass(frozen=True, slots=True)
class Loaded:
    """What serves now, and the files it was loaded from."""

    entry: ModelEntry
    shared: Prints
    versions: Mapping[str, Prints]
    """Files of each version that serves."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do about a model that serves."""

    is_replaced: bool = False
    """Load all of it beside what serves."""
    stale: frozenset[str] = frozenset()
    """Versions that serve and have other files now."""
    gone: frozenset[str] = frozenset()
    """Versions that serve and have no folder any more."""
    is_kept: bool = False
    """The folder can't be read as a model: but for what is gone, everything stays as it is."""


def find_change(loaded: Loaded, entry: ModelEntry, footprint: Footprint, *, is_forced: bool = False) -> Change:
    """Compare what serves with what the folder holds; `is_forced` loads anew what has not changed either."""
    serving = frozenset(loaded.versions)
    gone = frozenset(v for v in serving if v not in footprint.versions and v not in entry.versions)
    if entry.config is None:
        return Change(gone=gone, is_kept=True)
    if not _is_same_config(loaded.entry, entry) or loaded.shared != footprint.shared:
        return Change(is_replaced=True, gone=gone)
    if is_forced:
        return Change(stale=serving - gone, gone=gone)
    stale = frozenset(v for v in serving - gone if loaded.versions[v] != footprint.versions.get(v, ()))
    return Change(stale=stale, gone=gone)


def may_take_over(serving: Collection[str], wanted: Collection[str], ready: Collection[str]) -> bool:
    """Whether a successor with these `ready` versions hurts nobody: each version that serves and is wanted is ready."""
    return bool(ready) and all(version in ready for version in serving if version in wanted)


def _is_same_config(old: ModelEntry, new: ModelEntry) -> bool:
    """Which versions serve is no part of how they serve."""
    return old.config == new.config and _serving_part(old.triton_config) == _serving_part(new.triton_config)


def _serving_part(triton: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in triton.items() if key != "version_policy"}
