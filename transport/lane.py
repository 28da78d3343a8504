r"""One lane's pull loop: asks for messages in rows, hands them out, survives its consumer. Executes nothing.

    window has room -> MSG.NEXT -> messages -> on_delivery -> rows in hand -> finished -> room again
                         \-> status: credits come back, or the consumer is gone -> recover -> pull again

Pulls and acks made in one loop tick leave with that tick's replies in one write.

Invariants: no message waits for ack_wait because a lane stopped (tests/broker/test_lanes.py).
Source: NATS JetStream wire API, ADR-13 (pull subscribe internals); docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from contract.deadline import BrokerClock
from contract.streams import (
    ACK_WAIT_S,
    NS_PER_S,
    PULL_EXPIRES_S,
    PULL_HEARTBEAT_S,
    PULL_MAX_BYTES,
    ConsumerSpec,
    lane_consumer,
)
from contract.subjects import LaneAddress
from transport.base import Disconnected, OnDelivery, TransportError
from transport.clock import observe_stored
from transport.credits import CreditBook, RowWindow
from transport.hand import IN_PROGRESS, Hand, Held, ack_fields
from transport.link import Link, Listening, header_field, status_of

SILENT_S: Final = 2 * PULL_HEARTBEAT_S + 0.25
"""Two missed heartbeats: whoever served our pulls does so no more."""
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
NAK_AFTER_FAULT_S: Final = 1.0
"""A delivery whose callback raised comes back this much later, here or elsewhere."""

_PULL = b'{"batch":%%d,"expires":%d,"idle_heartbeat":%d,"max_bytes":%%d}' % (
    int(PULL_EXPIRES_S * NS_PER_S),
    int(PULL_HEARTBEAT_S * NS_PER_S),
)
_ENVELOPE_BYTES: Final = 4096
"""Subject and ack subject count against max_bytes too."""

log = structlog.get_logger(__name__)

Ensure = Callable[[ConsumerSpec], Awaitable[str]]
"""Makes sure that stream and consumer are there; returns what tells this consumer from an earlier one of its name."""


class PullWindow(RowWindow):
    """A row window that refills its lanes before the tick's write, once for all that changed in the tick."""

    __slots__ = ("_is_marked", "_link", "lanes")

    def __init__(self, link: Link, max_rows: int) -> None:
        super().__init__(max_rows)
        self._link = link
        self._is_marked = False
        self.lanes: list[PullLane] = []

    def resize(self, max_rows: int) -> None:
        """See `base.RowWindow`."""
        self.max_rows = max_rows
        self.mark()

    def mark(self) -> None:
        """Something changed: look at the lanes before the next write."""
        if not self._is_marked:
            self._is_marked = True
            self._link.before_flush(self._refill)

    def _refill(self) -> None:
        self._is_marked = False
        for lane in self.lanes:
            if lane.book.is_low:
                lane.refill()


class PullLane:
    """`base.Lane` over raw pulls."""

    def __init__(
        self,
        link: Link,
        hand: Hand,
        window: PullWindow,
        address: LaneAddress,
        *,
        on_delivery: OnDelivery,
        ensure: Ensure,
        clock: BrokerClock,
        now_s: Callable[[], float],
        is_always_open: bool,
    ) -> None:
        self.address = address
        self._link = link
        self._hand = hand
        self._window = window
        self._spec = spec = lane_consumer(address)
        self._on_delivery = on_delivery
        self._ensure = ensure
        self._clock = clock
        self._now_s = now_s
        self.book = CreditBook(window, is_always_open=is_always_open)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.name}".encode()
        self._inbox = b""
        self._listening: Listening | None = None
        self._send_bound = self._send
        self._deferred: list[tuple[bytes, bytes]] = []
        self._consumer_id = ""
        self._is_sure = False
        self._unsure_since_s = now_s()
        self._is_stopping = False
        self._is_over_limit = False
        self._is_stale = False
        self._heard_s = now_s()
        self._last_ack = b""
        self._recovery: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        """Before the next look for the consumer: none at first, more each time until it serves a pull."""

    @property
    def num_credits(self) -> int:
        """Messages asked for and not yet come."""
        return self.book.num_open

    @property
    def is_done(self) -> bool:
        """Stopped, and everything it handed out is settled."""
        return self._is_stopping and not any(d.sender is self._send_bound for d in self._hand.held)

    async def start(self, inbox: str) -> None:
        """Listen first, pull then: what comes of a pull that nobody listens to would be lost for ack_wait."""
        self._inbox = inbox.encode()
        self._consumer_id = await self._ensure(self._spec)
        self._listening = await self._link.listen(inbox, self._on_raw)
        self._be_sure()

    def finished(self, rows: int) -> None:
        """Rows of a delivery left the worker's hands."""
        self.book.finished(rows)
        self._window.mark()

    async def stop(self) -> None:
        """Give the pulls up by leaving the inbox; what is on its way by then is handed back at once."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self.book.close()
        if self in self._window.lanes:
            self._window.lanes.remove(self)
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
        if self._listening is not None:
            with contextlib.suppress(TransportError):
                await self._listening.drain()

    def refill(self) -> None:
        """Ask for what there is room for."""
        if self._is_stopping or self._is_stale or self._is_over_limit or not (self._is_sure and self._link.is_up):
            return
        now_s = self._now_s()
        if self.book.num_open == 0:
            self._heard_s = now_s  # without a pull the broker owes no heartbeat
        messages = self.book.ask(now_s)
        if messages:
            # All open pulls together stay within the limit, but the largest message fits in each.
            share = PULL_MAX_BYTES * messages // self.book.num_open
            max_bytes = max(share, self._link.max_payload + _ENVELOPE_BYTES)
            try:
                self._link.send(self._next, _PULL % (messages, max_bytes), self._inbox)
            except Disconnected:
                self.book.forget()

    def tick(self, now_s: float) -> None:
        """Each half second: credits that ended, heartbeats that did not come, a recovery that takes too long."""
        if self._is_stopping:
            return
        self._is_over_limit = False
        self.book.tick(now_s)
        if self._last_ack:
            observe_stored(self._clock, int(ack_fields(self._last_ack)[3]) / NS_PER_S, self._heard_s)
            self._last_ack = b""
        if self._is_sure and self.book.num_open and now_s - self._heard_s > SILENT_S:
            log.info("consumer-silent", consumer=self._spec.name, silent_s=round(now_s - self._heard_s, 2))
            self.recover()
        if not self._is_sure and now_s - self._unsure_since_s > ACK_WAIT_S:
            self._lose_own()
        self._window.mark()

    def disconnected(self) -> None:
        """Nothing asked for will come; what is settled meanwhile waits until we know the consumer is the same."""
        self.book.forget()
        if self._is_stopping:
            self._lose_own()  # nobody will look whether the consumer is still the same
        if self._is_sure:
            self._is_sure = False
            self._unsure_since_s = self._now_s()

    def fenced(self) -> None:
        """After a freeze: pulls have expired, acks that waited are void."""
        self._is_stale = True
        self._deferred.clear()
        self.book.forget()

    def woke(self) -> None:
        """What the broker had sent before we woke has passed."""
        self._is_stale = False
        self._window.mark()

    def recover(self) -> None:
        """Look for the consumer, create it if it is gone, pull again."""
        self.disconnected()
        if not self._is_stopping and (self._recovery is None or self._recovery.done()):
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        while not self._is_stopping and self._link.is_up:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(RETRY_MAX_S, self._pause_s * 2) or RETRY_FIRST_S
            try:
                consumer_id = await self._ensure(self._spec)
            except TransportError as e:
                log.warning("lane-without-consumer", consumer=self._spec.name, error=str(e), again_in_s=self._pause_s)
                continue
            if consumer_id != self._consumer_id:
                self._consumer_id = consumer_id
                self._lose_own()
            self._be_sure()
            return

    def _be_sure(self) -> None:
        self._is_sure = True
        self._heard_s = self._now_s()
        deferred, self._deferred = self._deferred, []
        for ack_subject, verb in deferred:
            self._send(ack_subject, verb)
        self._window.mark()

    def _lose_own(self) -> None:
        self._deferred.clear()
        self._hand.lose([d for d in self._hand.held if d.sender is self._send_bound])

    def _send(self, ack_subject: bytes, verb: bytes) -> None:
        if self._is_sure or self._is_stopping:
            with contextlib.suppress(Disconnected):
                self._link.send(ack_subject, verb)
                return
        if verb is not IN_PROGRESS:
            self._deferred.append((ack_subject, verb))

    def _on_raw(self, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        self._heard_s = now_s = self._now_s()
        if (now_s > self._hand.fence_after_s and self._hand.fence(now_s)) or self._is_stale:
            return  # sent before we froze or while: somebody else has it
        if not reply:
            self._on_status(status_of(header), header)
            return
        self._pause_s = 0.0
        self._last_ack = reply
        self.book.arrived()
        delivery = Held(self._hand, self._send_bound, reply, subject.decode(), payload)
        self._hand.held[delivery] = None
        if self._is_stopping:
            delivery.nak()
            return
        try:
            self.book.took(self._on_delivery(delivery))
        except Exception:
            log.exception("delivery-callback-failed", subject=delivery.subject, sequence=delivery.sequence)
            if not delivery.is_settled:
                delivery.nak(NAK_AFTER_FAULT_S)
        self._window.mark()

    def _on_status(self, status: bytes, header: bytes) -> None:
        if self._is_stopping:
            return
        if status == b"100":
            self._pause_s = 0.0
            return
        pending = header_field(header, b"Nats-Pending-Messages")
        if pending:  # 404, 408, and 409 of a pull whose max_bytes is used up
            self.book.returned(int(pending))
        elif status == b"409" and b"Exceeded" in header:
            # A limit of the consumer's (MaxWaiting): asking again at once would only be refused again.
            self._is_over_limit = True
            self.book.forget()
        else:  # 503: no such consumer; 409: consumer deleted, leadership change, server shutdown
            self.recover()
            return
        self._window.mark()
