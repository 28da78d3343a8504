"""Layers of given values to settings and the origin of each, or every problem at once. Reads nothing.

Invariants: a later layer wins key by key; each effective value has exactly one origin (tests/unit/test_config.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from headrace.config.environment import read_text
from headrace.config.given import DEFAULT_ORIGIN, ConfigError, Given, Problem, dotted
from headrace.config.keys import Key, find_key, is_section, nearest
from headrace.config.rules import broken_rules
from headrace.config.settings import HeadraceSettings

_SHARED = "broker"
_SHARERS = ("gateway", "worker")


@dataclass(frozen=True, slots=True)
class Effective:
    """What is in force, and where each value that is not the default came from."""

    settings: HeadraceSettings
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Where the value of `key` came from."""
        return self.origins.get(key, DEFAULT_ORIGIN)

    def rows(self) -> list[tuple[str, object, str]]:
        """(key, value, origin) of every effective value; a `broker` section that repeats the shared one is left out."""
        shared = self.settings.broker
        rows: list[tuple[str, object, str]] = []
        for name in type(self.settings).model_fields:
            section = getattr(self.settings, name)
            for path, value in _flatten(section, (name,)):
                is_broker = path[0] in _SHARERS and path[1] == _SHARED
                if not (is_broker and value == getattr(shared, path[-1])):
                    rows.append((dotted(path), value, self.origin(dotted(path))))
        return rows


def resolve(layers: Sequence[Iterable[Given]]) -> Effective:
    """Settings from layers, the lowest first.

    Raises:
        ConfigError: unknown keys, values that are not allowed; each with its origin.
    """
    problems: list[Problem] = []
    chosen: dict[tuple[str, ...], Given] = {}
    for layer in layers:
        for given in _with_shared_broker(layer):
            read = _read(given, problems)
            if read is not None:
                _put(chosen, read)
    if problems:
        raise ConfigError(_unique(problems))
    try:
        settings = HeadraceSettings.model_validate(_nested(chosen.values()))
    except ValidationError as e:
        raise ConfigError(_unique(_explain(err, chosen) for err in e.errors())) from None
    origins = {given.key: given.origin for given in chosen.values()}
    broken = [_broken(keys, text, origins) for keys, text in broken_rules(settings)]
    if broken:
        raise ConfigError(broken)
    return Effective(settings, origins)


def _with_shared_broker(layer: Iterable[Given]) -> list[Given]:
    """A layer whose `broker` values count for gateway and worker too, unless it gives them their own."""
    given = list(layer)
    own = {g.path for g in given}
    spread = [
        replace(g, path=(sharer, *g.path))
        for g in given
        if g.path[0] == _SHARED
        for sharer in _SHARERS
        if (sharer, *g.path) not in own
    ]
    return [*given, *spread]


def _read(given: Given, problems: list[Problem]) -> Given | None:
    """`given` with its value read, if the key exists."""
    key = find_key(given.path)
    if key is None:
        if is_section(given.path):
            problems.append(Problem(given.origin, f"{given.key} is a section with keys under it, not a value"))
            return None
        meant = nearest(given.path)
        hint = f", did you mean {meant}?" if meant else "; `headrace config show` lists the keys"
        problems.append(Problem(given.origin, f"unknown key {given.key}{hint}"))
        return None
    value = given.value
    if given.is_text:
        try:
            value = read_text(key, str(value))
        except ValueError as e:
            problems.append(Problem(given.origin, f"{given.key}: {e}; allowed: {key.allowed}"))
            return None
    if isinstance(value, bool) and key.annotation in {int, float}:
        problems.append(_refusal(given.origin, given.key, value, key))
        return None
    return replace(given, value=value, is_text=False)


def _put(chosen: dict[tuple[str, ...], Given], given: Given) -> None:
    """Let `given` win over lower layers: also over what lies under its key, or over a whole that held it."""
    for path in list(chosen):
        shorter = min(len(path), len(given.path))
        if path[:shorter] == given.path[:shorter]:
            del chosen[path]
    chosen[given.path] = given


def _nested(values: Iterable[Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for given in values:
        *path, last = given.path
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at[last] = given.value
    return tree


def _explain(error: Any, chosen: Mapping[tuple[str, ...], Given]) -> Problem:
    """One of pydantic's findings in our words."""
    path = tuple(str(p) for p in error["loc"])
    given = next((chosen[k] for k in _prefixes(path) if k in chosen), None)
    key = next((found for k in _prefixes(path) if (found := find_key(k)) is not None), None)
    origin = given.origin if given else DEFAULT_ORIGIN
    if key is None:
        return Problem(origin, f"{dotted(path)}: {error['msg']}")
    return _refusal(origin, given.key if given else dotted(path), given.value if given else error["input"], key)


def _broken(keys: tuple[str, ...], text: str, origins: Mapping[str, str]) -> Problem:
    """A rule between keys, told where one of them was given."""
    given = [o for key in keys for k, o in origins.items() if k == key or k.startswith(f"{key}.")]
    return Problem(given[0] if given else DEFAULT_ORIGIN, f"{keys[0]}: {text}")


def _refusal(origin: str, name: str, value: object, key: Key) -> Problem:
    hint = ""
    if isinstance(value, bool) and key.annotation is str:
        hint = " (YAML reads yes, no, on and off as true and false: put it in quotes)"
    default = "" if isinstance(key.default, BaseModel) else f" (default {_plain(key.default)})"
    return Problem(origin, f"{name}: {_plain(value)} is not allowed; allowed: {key.allowed}{default}{hint}")


def _plain(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str | list | dict) else str(value)


def _prefixes(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """`path` and what it lies under, the longest first."""
    return [path[:n] for n in range(len(path), 0, -1)]


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    """The same complaint about a shared value counts once."""
    seen: dict[str, Problem] = {}
    for p in problems:
        seen.setdefault(p.origin, p)
    return list(seen.values())


def _flatten(section: BaseModel, prefix: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        path = (*prefix, name)
        if isinstance(value, BaseModel):
            yield from _flatten(value, path)
        elif isinstance(value, dict) and _holds_sections(type(section).model_fields[name].annotation):
            for member, inner in value.items():
                yield from _flatten(inner, (*path, member))
        else:
            yield path, value


def _holds_sections(annotation: Any) -> bool:
    if get_origin(annotation) is not dict:
        return False
    member = get_args(annotation)[1]
    return isinstance(member, type) and issubclass(member, BaseModel)
