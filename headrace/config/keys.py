"""The keys that exist, from the settings' types: names, defaults, what is allowed. Reads no configuration.

A key is dotted: `gateway.http_port`. Where names are the user's own the pattern has `*`: `gateway.services.*.groups`.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.config.settings import HeadraceSettings

_UNITS = {"_ms": "milliseconds", "_us": "microseconds", "_s": "seconds", "_bytes": "bytes"}
_TYPES: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key one can set."""

    pattern: str
    annotation: Any
    default: object
    description: str
    allowed: str
    unit: str


def all_keys(model: type[BaseModel] = HeadraceSettings, prefix: str = "") -> Iterator[Key]:
    """Every key that holds a value, in the order of the settings; sections are descended into."""
    for name, field in model.model_fields.items():
        pattern = f"{prefix}{name}"
        section = section_of(field.annotation)
        if section is not None:
            yield from all_keys(section, f"{pattern}.")
            continue
        member = _member_of(field.annotation)
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield from all_keys(member, f"{pattern}.*.")
            continue
        yield _key(pattern, field)


def find_key(path: tuple[str, ...]) -> Key | None:
    """The key at `path`, or None: it does not exist, or it is a section."""
    found = _walk(path)
    return found if isinstance(found, Key) else None


def is_section(path: tuple[str, ...]) -> bool:
    """Whether `path` names a group of keys."""
    return _walk(path) == "section"


def nearest(path: tuple[str, ...]) -> str | None:
    """What was probably meant by an unknown key."""
    dotted = ".".join(path)
    known = [k.pattern for k in all_keys()]
    sections = sorted({p.rsplit(".", 1)[0] for p in known} | {p.split(".", 1)[0] for p in known})
    close = difflib.get_close_matches(dotted, [*known, *sections], n=1, cutoff=0.75)
    if close:
        return close[0]
    last = dotted.rsplit(".", 1)[-1]
    same = [p for p in known if p.rsplit(".", 1)[-1] == last]
    return same[0] if same else None


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The settings class behind an annotation, if it is one."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _walk(parts: tuple[str, ...]) -> Key | Literal["section"] | None:
    """Follow a key through the types."""
    model: type[BaseModel] = HeadraceSettings
    at = 0
    while at < len(parts):
        field = model.model_fields.get(parts[at])
        if field is None:
            return None
        at += 1
        section = section_of(field.annotation)
        if section is not None:
            model = section
            continue
        member = _member_of(field.annotation)
        if member is None or at == len(parts):
            return _key(".".join(parts), field) if at == len(parts) else None
        inner = section_of(member)
        if inner is None:
            return _key(".".join(parts[:at]), field, member) if at + 1 == len(parts) else None
        model, at = inner, at + 1
    return "section"


def _key(pattern: str, field: FieldInfo, annotation: Any = None) -> Key:
    name = pattern.rsplit(".", 1)[-1]
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    of = field.annotation if annotation is None else annotation
    return Key(pattern, of, field.default, field.description or "", _allowed(of, field.metadata), unit)


def _member_of(annotation: Any) -> Any:
    """Value type of a mapping annotation, else None."""
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    """In words, what a key takes."""
    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(str(a) for a in get_args(annotation))
    if origin in {Union, types.UnionType}:
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return f"{_allowed(inner[0], metadata)}, or null"
    if origin is list:
        least = next((m.min_length for m in metadata if isinstance(m, MinLen)), 0)
        return f"list of {_TYPES.get(get_args(annotation)[0], 'values')}" + (f", at least {least}" if least else "")
    if origin is dict:
        return "mapping of name to " + _TYPES.get(get_args(annotation)[1], "section")
    return _TYPES.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    low = high = ""
    for m in metadata:
        match m:
            case Ge():
                low = f"{m.ge:,}"
            case Gt():
                low = f"over {m.gt:,}"
            case Le():
                high = f"{m.le:,}"
            case Lt():
                high = f"under {m.lt:,}"
    if low and high:
        return f", {low} to {high}"
    if low:
        return f", {low}" if low.startswith("over") else f", at least {low}"
    return f", at most {high}" if high else ""
