"""A broker message in this worker's hands: settled once, when the last of its requests has left. Decodes nothing."""

from __future__ import annotations

from typing import Protocol

from transport.base import Delivery, Lane


class RoomGiver(Protocol):
    """The lane a message came from: it is told when rows leave."""

    def finished(self, rows: int) -> None:
        """`rows` left: there is room for more."""


class LanePort:
    """A lane that may deliver before the call that opens it has returned."""

    __slots__ = ("_early_rows", "lane")

    def __init__(self) -> None:
        self.lane: Lane | None = None
        self._early_rows = 0

    def attach(self, lane: Lane) -> None:
        """The lane is open."""
        self.lane = lane
        if self._early_rows:
            lane.finished(self._early_rows)

    def finished(self, rows: int) -> None:
        """`rows` left."""
        if self.lane is None:
            self._early_rows += rows
        elif rows:
            self.lane.finished(rows)


class InHand:
    """One delivery, its lane, and how many of its requests have not left."""

    __slots__ = ("delivery", "is_begun", "lane", "num_open", "reply", "return_after_s")

    def __init__(self, delivery: Delivery, lane: RoomGiver, reply: str, num_open: int = 0) -> None:
        self.delivery = delivery
        self.lane = lane
        self.reply = reply
        self.num_open = num_open
        self.is_begun = False
        """One of its requests has left: handed back, the message would bring that one to another worker again."""
        self.return_after_s: float | None = None
        """Set when one of its requests was given up on purpose: the message is handed back instead of acked."""

    def leave(self, rows: int, num_requests: int = 1) -> None:
        """`num_requests` requests with `rows` rows are answered, dropped or given up; the last one settles."""
        self.lane.finished(rows)
        self.is_begun = True
        self.num_open -= num_requests
        assert self.num_open >= 0, "a request left its message twice"
        if self.num_open == 0:
            self.settle()

    def settle(self) -> None:
        """Every request has left: ack, or hand back. A lost delivery is somebody else's by now."""
        delivery = self.delivery
        if delivery.is_lost or delivery.is_settled:
            return
        if self.return_after_s is None:
            delivery.ack()
        else:
            delivery.nak(self.return_after_s)
