"""Everything that lanes have in hand: keeps it in progress at the broker, and declares it lost after a freeze.

A process that was stopped, or whose loop hung, for longer than `ack_wait` no longer owns its messages: the broker has
given them to somebody else. The time of the last sign we gave is the proof; nothing else is trusted (I4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from contract.streams import ACK_WAIT_S
from transport.base import Delivery, OnLost
from transport.link import call_safely

IN_PROGRESS: Final = b"+WPI"

log = structlog.get_logger(__name__)


class Hand:
    """Deliveries not yet settled, over all lanes of one transport. `settler` sends for the lane they came from."""

    def __init__(self, now_s: Callable[[], float], ack_wait_s: float = ACK_WAIT_S) -> None:
        self.now_s = now_s
        self._ack_wait_s = ack_wait_s
        self._signed_s = now_s()
        self.fence_after_s = self._signed_s + ack_wait_s
        """Until then `fence` is False: looked at before each call, which happens several times per message."""
        self._callbacks: list[OnLost] = []
        self._on_fence: list[Callable[[], None]] = []
        self.held: dict[Held, None] = {}

    def on_lost(self, callback: OnLost) -> None:
        """Tell the holder."""
        self._callbacks.append(callback)

    def on_fence(self, callback: Callable[[], None]) -> None:
        """Tell the transport: what still comes from before the freeze is nobody's business either."""
        self._on_fence.append(callback)

    def fence(self, now_s: float) -> bool:
        """Whether the last sign is too old; the first call that finds it so loses everything in hand."""
        silent_s = now_s - self._signed_s
        if silent_s <= self._ack_wait_s:
            return False
        self._sign(now_s)
        if self.held:
            log.warning("frozen", silent_s=round(silent_s, 3), num_dropped=len(self.held))
        self.lose(list(self.held))
        for callback in self._on_fence:
            callback()
        return True

    def lose(self, deliveries: list[Held]) -> None:
        """These belong to somebody else now."""
        lost: list[Delivery] = []
        for d in deliveries:
            d.was_lost = True
            self.held.pop(d, None)
            lost.append(d)
        if lost:
            for callback in self._callbacks:
                call_safely(callback, lost)

    def sign(self, *, is_up: bool) -> None:
        """Each half second: everything in hand is in progress. Without a connection no sign is given."""
        now_s = self.now_s()
        if self.fence(now_s) or (not is_up and self.held):
            return
        self._sign(now_s)
        for d in self.held:
            d.in_progress()

    def _sign(self, now_s: float) -> None:
        self._signed_s = now_s
        self.fence_after_s = now_s + self._ack_wait_s


class Held:
    """One message in hand (`base.Delivery`)."""

    __slots__ = (
        "_ack_subject",
        "_hand",
        "is_settled",
        "num_delivered",
        "payload",
        "sender",
        "sequence",
        "subject",
        "was_lost",
    )

    def __init__(
        self, hand: Hand, send: Callable[[bytes, bytes], None], ack_subject: bytes, subject: str, payload: bytes
    ) -> None:
        self._hand = hand
        self.sender = send
        self._ack_subject = ack_subject
        fields = ack_fields(ack_subject)
        self.num_delivered = int(fields[0])
        self.sequence = int(fields[1])
        self.subject = subject
        self.payload = payload
        self.is_settled = False
        self.was_lost = False

    @property
    def is_lost(self) -> bool:
        """Asked before every answer: a freeze is noticed here, not only by the next timer."""
        if not self.was_lost:
            hand = self._hand
            now_s = hand.now_s()
            if now_s > hand.fence_after_s:
                hand.fence(now_s)
        return self.was_lost

    def ack(self) -> None:
        """Done: the broker forgets it."""
        self._settle(b"+ACK")

    def nak(self, delay_s: float = 0.0) -> None:
        """Hand it back for another worker."""
        self._settle(b'-NAK {"delay":%d}' % int(delay_s * 1e9) if delay_s > 0 else b"-NAK")

    def term(self) -> None:
        """Never deliver it again."""
        self._settle(b"+TERM")

    def in_progress(self) -> None:
        """We still have it."""
        self.sender(self._ack_subject, IN_PROGRESS)

    def _settle(self, verb: bytes) -> None:
        assert not self.is_settled, f"message {self.sequence} of {self.subject} is settled already"
        self.is_settled = True
        if not self.is_lost:
            self._hand.held.pop(self, None)
            self.sender(self._ack_subject, verb)


def ack_fields(ack_subject: bytes) -> list[bytes]:
    """[times delivered, stream sequence, consumer sequence, store time in ns, …] of an ack subject.

    `$JS.ACK.<stream>.<consumer>.` + fields, or `$JS.ACK.<domain>.<account>.<stream>.<consumer>.` + fields.
    """
    tokens = ack_subject.split(b".")
    return tokens[4:] if len(tokens) == 9 else tokens[6:]
