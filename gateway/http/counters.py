"""What the HTTP door counts, cheap enough for every request. `metrics.py` shows it; nothing here knows Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

OK: Final = "ok"
BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)
"""Upper bounds of the latency buckets, seconds: half a millisecond is a tiny model, a minute a long generation."""


class DoorCounters:
    """Counts since the start, and gauges now."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        """By (model, code); the model is empty where the request ended before one was found."""
        self.num_in_flight = 0
        self.num_connections = 0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.num_cut_off = 0
        """Connections ended by us: silent in mid-request, or not reading their answers."""

    def began(self) -> None:
        """One request is complete and has no answer yet."""
        self.num_in_flight += 1

    def ended(self, model: str, code: str, seconds: float) -> None:
        """One request got its answer, or its caller left."""
        self.num_in_flight -= 1
        key = (model, code)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
