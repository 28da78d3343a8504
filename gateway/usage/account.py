"""What one gateway counted on one day, and how it lies on the broker. Pure.

Totals, not additions, are written, each gateway life to subjects of its own: writing them twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from zlib import crc32

import msgspec

NUM_PARTS: Final = 16
"""A day's account lies in so many messages, by tenant: each stays under what a broker takes."""
FIGURES: Final = ("requests", "rows", "payload_bytes", "execution_us")

Counts = dict[tuple[str, str, str], list[int]]
"""By (tenant, key id, model): `FIGURES`."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One row of an account."""

    tenant: str
    key: str
    model: str
    figures: list[int]


_decoder = msgspec.msgpack.Decoder(list[Line])


def part_of(tenant: str) -> int:
    """The part that a tenant's lines are in."""
    return crc32(tenant.encode()) % NUM_PARTS


def day_of(unix_ms: int) -> str:
    """`2026-01-31`, UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).date().isoformat()


def add(totals: Counts, more: Counts) -> None:
    """Count `more` into `totals`."""
    for key, figures in more.items():
        found = totals.setdefault(key, [0] * len(FIGURES))
        for index, figure in enumerate(figures):
            found[index] += figure


def encode_part(totals: Counts, part: int) -> bytes:
    """The lines of a part."""
    return msgspec.msgpack.encode([Line(*key, figures) for key, figures in totals.items() if part_of(key[0]) == part])


def decode_part(payload: bytes) -> Counts:
    """The other way round."""
    return {(line.tenant, line.key, line.model): line.figures for line in _decoder.decode(payload)}


def grouped(days: Iterable[tuple[str, Counts]], by: tuple[str, ...]) -> list[dict[str, str | int]]:
    """Sums by some of `day`, `tenant`, `key`, `model`, sorted by them."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for day, counts in days:
        for (tenant, key, model), figures in counts.items():
            names = {"day": day, "tenant": tenant, "key": key, "model": model}
            found = sums.setdefault(tuple(names[name] for name in by), [0] * len(FIGURES))
            for index, figure in enumerate(figures):
                found[index] += figure
    return [dict(zip((*by, *FIGURES), (*key, *sums[key]), strict=True)) for key in sorted(sums)]
