"""What a model version asks of the worker around it. A protocol only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from workers.desk import Desk
from workers.gate import Gate
from workers.items import WorkItem

RunAlone = Callable[[WorkItem], Awaitable[None]]


class Host(Protocol):
    """The worker around a version."""

    desk: Desk
    gate: Gate
    inline_below_s: float
    """A model whose run is shorter runs in the event loop."""

    def suspect(self, item: WorkItem, run_alone: RunAlone) -> None:
        """Have it run alone when its turn comes."""

    def count_stuck_thread(self) -> None:
        """A thread was left behind in a model that does not return."""

    def changed(self) -> None:
        """Something that heartbeats tell changed."""
