"""The `Prefer` header: `respond-async` and `wait`; other preferences are ignored, as they may be. Pure.

Source: RFC 7240.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_WAIT = re.compile(r"[0-9]{1,9}\Z")


class Preferences(NamedTuple):
    """What the caller would like."""

    is_async: bool = False
    wait_s: int = 0
    """How long it would rather wait for the answer itself."""


def parse_preferences(values: Iterable[str]) -> Preferences:
    """Of the values of all `Prefer` headers; of a preference given twice the first counts."""
    found: dict[str, str] = {}
    for item in ",".join(values).split(","):
        name, _, value = item.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"').strip())
    wait = found.get("wait", "")
    return Preferences("respond-async" in found, int(wait) if _WAIT.match(wait) else 0)
