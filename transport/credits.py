"""How many messages a lane asks for, so that the rows in a worker's hands stay within its window. Pure: asks nobody.

A coalesced message holds up to `max_batch_size` rows, so messages are counted in rows: what fits in the window, divided
by the rows that a message lately had, less what is asked for already.

    room = ceil((max_rows - rows in hand) / rows per message)      wanted = min(room - others' credits, ramp)

`ramp` keeps a quiet lane at two credits and doubles with every refill while messages come: what an idle worker has
asked for could all come at once, and heavier than lately.

Invariants: credits never go below zero; a lane under its window has at least one; credits whose pulls have ended are
not counted for ever, even if the broker never said so (tests/property/test_credits.py).
Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from contract.streams import PULL_EXPIRES_S

RAMP_START: Final = 2
RAMP_MAX: Final = 256
LAPSE_S: Final = PULL_EXPIRES_S + 0.5
"""A pull is over by then, whether or not its last status arrived."""
HEAVIER: Final = 0.5
LIGHTER: Final = 0.05
"""Weights of the newest message in the average: quick to believe in heavy ones, slow to forget them."""


@dataclass(slots=True, eq=False)
class RowWindow:
    """Rows that the lanes of one model share; lanes that are always open are held back only by their own rows."""

    max_rows: int
    rows_in_hand: int = 0
    rows_always_open: int = 0
    books: list[CreditBook] = field(default_factory=list)


class CreditBook:
    """Credits of one lane."""

    __slots__ = ("_arrivals", "_pulls", "_ramp", "_window", "is_always_open", "num_open", "rows_per_message")

    def __init__(self, window: RowWindow, *, is_always_open: bool = False) -> None:
        self._window = window
        self.is_always_open = is_always_open
        self._pulls: deque[tuple[float, int]] = deque()
        self._ramp = RAMP_START
        self._arrivals = 0
        self.num_open = 0
        self.rows_per_message = max(1.0, window.max_rows / 2)
        """Heavy until shown otherwise: the window is two micro-batches, a message at most one."""
        window.books.append(self)

    @property
    def is_low(self) -> bool:
        """Whether `ask` is worth a call: never wanted are more than `ramp`, and above half of that nothing is."""
        return self.num_open <= self._ramp // 2

    def ask(self, now_s: float) -> int:
        """How many messages to ask for now; they count as open from here on. 0 above half of what is wanted."""
        wanted = self.wanted()
        missing = wanted - self.num_open
        if missing <= 0 or self.num_open > wanted // 2:
            return 0
        if self._arrivals:
            self._ramp = min(RAMP_MAX, self._ramp * 2)
            self._arrivals = 0
        self.num_open += missing
        self._pulls.append((now_s + LAPSE_S, missing))
        return missing

    def wanted(self) -> int:
        """How many credits should be open now."""
        window = self._window
        held = window.rows_always_open if self.is_always_open else window.rows_in_hand
        free = window.max_rows - held
        if free <= 0:
            return 0
        room = math.ceil(free / self.rows_per_message)
        if not self.is_always_open:
            room -= sum(b.num_open for b in window.books if b is not self and not b.is_always_open)
        return max(1, min(room, self._ramp))

    def arrived(self) -> None:
        """A message came."""
        self.num_open = max(0, self.num_open - 1)
        self._arrivals += 1

    def took(self, rows: int) -> None:
        """It held `rows`; 0 if it was settled at once, which counts as a light one."""
        self._window.rows_in_hand += rows
        if self.is_always_open:
            self._window.rows_always_open += rows
        weight = HEAVIER if rows > self.rows_per_message else LIGHTER
        self.rows_per_message += weight * (max(1, rows) - self.rows_per_message)

    def finished(self, rows: int) -> None:
        """Rows left the worker's hands."""
        window = self._window
        window.rows_in_hand = max(0, window.rows_in_hand - rows)
        if self.is_always_open:
            window.rows_always_open = max(0, window.rows_always_open - rows)

    def returned(self, messages: int) -> None:
        """The broker ended a pull with so many messages undelivered."""
        self.num_open = max(0, self.num_open - messages)

    def tick(self, now_s: float) -> None:
        """Each half second: a lane without traffic goes back to few credits, ended pulls are forgotten."""
        if not self._arrivals:
            self._ramp = RAMP_START
        self._arrivals = 0
        pulls = self._pulls
        while pulls and pulls[0][0] <= now_s:
            pulls.popleft()
        self.num_open = min(self.num_open, sum(n for _, n in pulls))

    def forget(self) -> None:
        """The consumer is gone or new: nothing asked for will come."""
        self.num_open = 0
        self._pulls.clear()

    def close(self) -> None:
        """Leave the window."""
        self.forget()
        if self in self._window.books:
            self._window.books.remove(self)
