"""The one door to the core: may this request come in now? Yes is a Ticket, no is an error. Pure.

Every door passes here, so that bounds hold whoever asks. The order of the questions: our state (draining, broker
away), the caller's rights, the caller's configured limits, the bounds of this process.

Invariants: a Ticket is released exactly once; when nothing is open `num_in_flight` and `held_bytes` are 0
(tests/unit/test_admission.py).
"""

from __future__ import annotations

from contract.errors import DeadlineExceeded, Forbidden, HeadraceError, Unavailable
from contract.principal import Principal


class Ticket:
    """What an accepted request occupies until it ends."""

    __slots__ = ("admission", "held_bytes", "is_released")

    def __init__(self, admission: Admission, held_bytes: int) -> None:
        self.admission = admission
        self.held_bytes = held_bytes
        self.is_released = False

    def release(self) -> None:
        """Give back what was taken. A second release is an error of the caller (AssertionError)."""
        assert not self.is_released, "a ticket is released once"
        self.is_released = True
        self.admission.num_in_flight -= 1
        self.admission.held_bytes -= self.held_bytes


class Admission:
    """Counts what is inside and decides who comes in."""

    def __init__(self, max_in_flight: int, max_held_bytes: int) -> None:
        self.max_in_flight = max_in_flight
        self.max_held_bytes = max_held_bytes
        self.num_in_flight = 0
        self.held_bytes = 0
        self.num_refused: dict[str, int] = {}
        """Refusals by error code."""
        self.closed_with: type[Unavailable] | None = None
        """Why nothing new is taken, or None."""
        self._closed_reason = ""

    def close(self, error: type[Unavailable], reason: str) -> None:
        """Refuse everything new with `error`."""
        self.closed_with = error
        self._closed_reason = reason

    def open(self) -> None:
        """Take requests again."""
        self.closed_with = None

    def check_open(self) -> None:
        """Raises the error given to `close`, so that a body needn't be decoded to be refused."""
        if self.closed_with is not None:
            raise self.closed_with(self._closed_reason)

    def admit(self, principal: Principal, held_bytes: int, deadline_s: float, now_s: float) -> Ticket | HeadraceError:
        """A ticket, or why not."""
        refusal: HeadraceError | None = None
        if self.closed_with is not None:
            refusal = self.closed_with(self._closed_reason)
        elif "infer" not in principal.roles:
            refusal = Forbidden(f"key {principal.key_id!r} lacks the role 'infer'")
        # A caller's configured limits (429) are decided here: after its rights, before what we have room for.
        elif (
            deadline_s <= now_s
            or self.num_in_flight >= self.max_in_flight
            or self.held_bytes + held_bytes > self.max_held_bytes
        ):
            refusal = self._bound_refusal(held_bytes, deadline_s, now_s)
        if refusal is not None:
            self.num_refused[refusal.code] = self.num_refused.get(refusal.code, 0) + 1
            return refusal
        self.num_in_flight += 1
        self.held_bytes += held_bytes
        return Ticket(self, held_bytes)

    def _bound_refusal(self, held_bytes: int, deadline_s: float, now_s: float) -> HeadraceError:
        if deadline_s <= now_s:
            return DeadlineExceeded(f"the deadline passed {(now_s - deadline_s) * 1000:.0f} ms before admission")
        if self.num_in_flight >= self.max_in_flight:
            return Unavailable(f"{self.num_in_flight} requests are in flight, at most {self.max_in_flight} are taken")
        return Unavailable(
            f"the request has {held_bytes} bytes, {self.held_bytes} of at most {self.max_held_bytes} are held"
        )
