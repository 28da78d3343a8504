"""When an answer stops being of use: parsed from a header, carried in broker time, checked on the monotonic clock.

Pure: every function takes the time it should use.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from contract.errors import InvalidInput

DEFAULT_TIMEOUT_MS: Final = 30_000
MAX_TIMEOUT_MS: Final = 600_000
_DIGITS = re.compile(r"[0-9]{1,18}\Z")


def parse_timeout_ms(value: str | None, *, default_ms: int = DEFAULT_TIMEOUT_MS, max_ms: int = MAX_TIMEOUT_MS) -> int:
    """Milliseconds of a `Headrace-Timeout-Ms` header; absent gives the default, more than `max_ms` is cut to it.

    Raises:
        InvalidInput: not a whole number of at least 1; an expired deadline is refused, not made urgent.
    """
    if value is None:
        return default_ms
    if not _DIGITS.match(value.strip()) or int(value) < 1:
        raise InvalidInput(
            f"Headrace-Timeout-Ms is {value!r}, it must be a whole number of milliseconds, 1 to {max_ms}"
        )
    return min(int(value), max_ms)


class BrokerClock(msgspec.Struct):
    """This process's view of the broker's clock: `offset_s` is broker time minus our monotonic clock."""

    offset_s: float

    def now_ms(self, monotonic_s: float) -> int:
        """Broker time now, unix milliseconds."""
        return int((monotonic_s + self.offset_s) * 1000)

    def to_wire_ms(self, deadline_monotonic_s: float) -> int:
        """A deadline on our monotonic clock as unix milliseconds in broker time."""
        return int((deadline_monotonic_s + self.offset_s) * 1000)

    def from_wire_ms(self, deadline_unix_ms: int) -> float:
        """A deadline in broker time on our monotonic clock, seconds."""
        return deadline_unix_ms / 1000 - self.offset_s

    def observe(self, broker_unix_s: float, monotonic_s: float, weight: float = 0.1) -> None:
        """Take one more reading of the broker's clock; small errors are smoothed, a jump over 1 s is taken as it is."""
        seen = broker_unix_s - monotonic_s
        drift = seen - self.offset_s
        self.offset_s = seen if abs(drift) > 1.0 else self.offset_s + weight * drift
