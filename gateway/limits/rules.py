"""The limits file: what is allowed per scope and name, and where each limit was written. Reads a file; decides nothing.

limits:
  cluster: {requests_per_second: 500}
  tenant:
    "*": {requests_per_second: 10, tokens_per_minute: 100000}   # every tenant, each with counts of its own
    acme: {requests_per_second: 50}                             # the rest of acme's are those of "*"
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.limits.verdict import Unit

EVERY: Final = "*"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
Interface = Literal["infer", "chat", "completions", "embeddings", "rerank", "score", "moderations", "files", "batches"]
_WHOLE: Final = ("cluster", "node")
"""Scopes without names."""


class LimitsError(Exception):
    """The limits can't be used; the message names file and line."""


class LimitValues(BaseModel):
    """What one name may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_second: float | None = Field(default=None, gt=0, le=1e9, description="Requests per second.")
    requests_per_minute: float | None = Field(default=None, gt=0, le=1e9, description="Or requests per minute.")
    burst: int | None = Field(
        default=None, ge=1, le=10**9, description="Requests at once after a pause; else a second's, or a minute's."
    )
    concurrency: int | None = Field(default=None, ge=0, le=10**9, description="Requests at a time.")
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12, description="Tokens per minute, in and out.")
    queued_batch_rows: int | None = Field(default=None, ge=0, le=10**12, description="Rows of batch jobs that wait.")

    @model_validator(mode="after")
    def _is_one_rate(self) -> LimitValues:
        if self.requests_per_second is not None and self.requests_per_minute is not None:
            raise ValueError("requests_per_second and requests_per_minute are two ways to say one thing: give one")
        if self.burst is not None and self.requests_per_second is None and self.requests_per_minute is None:
            raise ValueError("burst belongs to requests_per_second or requests_per_minute, and neither is given")
        return self


class ScopeLimits(BaseModel):
    """Everything below `limits:`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: LimitValues | None = Field(default=None, description="All gateways together.")
    node: LimitValues | None = Field(default=None, description="Each gateway process.")
    service: dict[str, LimitValues] = Field(default={}, description="By service.")
    interface: dict[Interface | Literal["*"], LimitValues] = Field(default={}, description="By kind of request.")
    group: dict[str, LimitValues] = Field(default={}, description="By group.")
    model: dict[str, LimitValues] = Field(default={}, description="By model.")
    tenant: dict[str, LimitValues] = Field(default={}, description="By tenant.")
    key: dict[str, LimitValues] = Field(default={}, description="By `tenant/key id`.")


class LimitsFile(BaseModel):
    """The whole of limits.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limits: ScopeLimits = Field(default=ScopeLimits(), description="Limits by scope.")


class Rule:
    """One limit as it was written, for a name or for every name."""

    __slots__ = ("capacity", "configured_at", "limit", "per", "rate_per_us")

    def __init__(self, limit: float, per: str, capacity: float, rate_per_us: float, configured_at: str) -> None:
        self.limit = limit
        self.per = per
        self.capacity = capacity
        self.rate_per_us = rate_per_us
        self.configured_at = configured_at


Rules = Mapping[tuple[str, str], Mapping[Unit, Rule]]
"""By (scope, name): the rule of each unit. The name of cluster and node is empty."""


def load_rules(path: Path) -> dict[tuple[str, str], dict[Unit, Rule]]:
    """Every rule of the file.

    Raises:
        LimitsError: unreadable, unknown fields, wrong values, a name twice; with file and line.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise LimitsError(f"{path}: over {MAX_FILE_BYTES} bytes")
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise LimitsError(f"{path}:{line}: not valid YAML: {e.problem or e.context}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise LimitsError(f"{path}: {e}") from None
    if root is None:
        return {}
    lines = dict(_lines(root, ()))
    for loc, line in lines.items():
        if loc and loc[-1] == _TWICE:
            raise LimitsError(f"{path}:{line}: {loc[-2]!r} is there twice")
    try:
        parsed = LimitsFile.model_validate(yaml.constructor.SafeConstructor().construct_document(root))
    except yaml.YAMLError as e:
        raise LimitsError(f"{path}: {e}") from None
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LimitsError(f"{path}:{_line(lines, first['loc'])}: {where}: {first['msg']}") from None
    return {
        (scope, name): rules_of(values, lambda field, at=at: f"{path}:{_line(lines, (*at, field))}")
        for scope, name, values in _named(parsed.limits)
        for at in [("limits", scope, name) if name else ("limits", scope)]
    }


def rules_of(values: LimitValues, where: Any) -> dict[Unit, Rule]:
    """The rules in one entry; `where(field)` says where a field was written."""
    found: dict[Unit, Rule] = {}
    for field, per, seconds in (("requests_per_second", "second", 1), ("requests_per_minute", "minute", 60)):
        rate = getattr(values, field)
        if rate is not None:
            burst = values.burst if values.burst is not None else max(1, math.ceil(rate))
            found["qps"] = Rule(rate, per, burst, rate / seconds / 1e6, where(field))
    if values.tokens_per_minute is not None:
        tokens = values.tokens_per_minute
        found["tokens"] = Rule(tokens, "minute", tokens, tokens / 60e6, where("tokens_per_minute"))
    if values.concurrency is not None:
        found["concurrency"] = Rule(values.concurrency, "", values.concurrency, 0.0, where("concurrency"))
    if values.queued_batch_rows is not None:
        rows = values.queued_batch_rows
        found["rows"] = Rule(rows, "", rows, 0.0, where("queued_batch_rows"))
    return found


def _named(limits: ScopeLimits) -> Iterator[tuple[str, str, LimitValues]]:
    for scope in ScopeLimits.model_fields:
        entry = getattr(limits, scope)
        if scope in _WHOLE:
            if entry is not None:
                yield scope, "", entry
        else:
            for name, values in entry.items():
                yield scope, name, values


_TWICE: Final = "\0twice"
_Loc = tuple[Hashable, ...]


def _lines(node: yaml.Node, loc: _Loc) -> Iterator[tuple[_Loc, int]]:
    """(path, line from 1) of every key; a key's second copy has `_TWICE` behind its path."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        path = (*loc, name)
        if name in seen:
            yield (*path, _TWICE), key.start_mark.line + 1
        seen.add(name)
        yield path, key.start_mark.line + 1
        yield from _lines(value, path)


def _line(lines: Mapping[_Loc, int], loc: _Loc) -> int:
    """Line of the deepest key on the way to `loc`."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in lines:
            return lines[loc[:length]]
    return 1
