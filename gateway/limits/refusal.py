"""A refusal by a configured limit, as every door tells it and as the log has it. Decides nothing."""

from __future__ import annotations

import math

from contract.errors import LimitReached
from gateway.limits.verdict import Refused

DEGRADED = "the current limit has been reached"


class LimitRefused(LimitReached):
    """Says which limit, how it stands and when to come back."""

    def __init__(self, refused: Refused) -> None:
        limit = refused.limit
        if refused.is_final:
            text = f"the request takes {refused.asked:g}, which is more than {limit.strategy} {limit.shown} ever allows"
        else:
            whose = f" of {limit.scope} {limit.name!r}" if limit.name else ""
            text = f"{DEGRADED}: {limit.strategy}, {limit.shown}{whose}, {refused.current:.6g} in use"
        seconds = refused.retry_after_s
        super().__init__(text, retry_after_s=None if seconds is None else max(1, math.ceil(seconds)))
        self.refused = refused

    def headers(self) -> dict[str, str]:
        """Headers beside `Retry-After`; clients repeat any 429 unless told not to."""
        limit = self.refused.limit
        found = {} if not self.refused.is_final else {"x-should-retry": "false"}
        what = {"qps": "requests", "tokens": "tokens"}.get(limit.unit)
        if what is not None:
            left = max(0, math.floor(limit.capacity - self.refused.current))
            reset_s = self.refused.current / limit.rate_per_us / 1e6
            found |= {
                f"x-ratelimit-limit-{what}": f"{limit.capacity:.0f}",
                f"x-ratelimit-remaining-{what}": str(left),
                f"x-ratelimit-reset-{what}": f"{reset_s:.3f}s",
            }
        return found
