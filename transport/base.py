"""What gateways and workers may ask of a broker. Protocols only; `nats_transport.py` and `memory.py` keep them.

Callbacks are synchronous and run in the event loop: they must not block. Everything that waits on the broker has a
time-out and raises `TransportError` when it passes.

One suite holds both implementations to this text: tests/conformance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from contract.deadline import BrokerClock
from contract.messages import BlobRef
from contract.streams import ConsumerSpec, StreamSpec
from contract.subjects import LaneAddress

OnMessage = Callable[[str, str, bytes], None]
"""(subject, reply subject or "", payload)"""


class TransportError(Exception):
    """The broker did not do what was asked."""


class Disconnected(TransportError):
    """There is no connection now; nothing was sent."""


class NoResponders(TransportError):
    """Nobody listens on the subject, said by the broker at once."""


class BrokerTimeout(TransportError):
    """No answer from the broker or the peer in time."""


class PayloadOverLimit(TransportError):
    """The message is larger than the broker takes; nothing was sent and the connection is unharmed."""

    def __init__(self, payload_bytes: int, max_bytes: int) -> None:
        super().__init__(f"message of {payload_bytes} bytes, the broker takes {max_bytes}")
        self.payload_bytes = payload_bytes
        self.max_bytes = max_bytes


class StreamGone(TransportError):
    """The stream does not exist (any more)."""


class StreamFull(TransportError):
    """The stream took nothing more: `max_msgs`, `max_bytes` or its storage is used up."""


class SpecMismatch(TransportError):
    """A stream or consumer of this name exists with other values; the message shows both."""


class Stored(msgspec.Struct, frozen=True):
    """The stream has the message."""

    sequence: int


PublishOutcome = Stored | StreamFull | StreamGone | TransportError
OnStored = Callable[[PublishOutcome], None]


class Subscription(Protocol):
    """A running subscription."""

    async def unsubscribe(self) -> None:
        """Stop; no callback runs afterwards."""


class Delivery(Protocol):
    """One message in a worker's hand. It is settled exactly once; until then the transport tells the broker that it
    is in progress. After a freeze longer than ack_wait it is `is_lost`: another worker may have it, so the holder
    answers nothing and settling does nothing.
    """

    payload: bytes
    subject: str
    sequence: int
    num_delivered: int
    """1 at first; higher after a redelivery."""
    is_settled: bool

    @property
    def is_lost(self) -> bool:
        """Asked before every answer: a freeze is noticed here, not only by the next timer."""

    def ack(self) -> None:
        """Done: the broker forgets it. A second settling is an error of the caller (AssertionError)."""

    def nak(self, delay_s: float = 0.0) -> None:
        """Hand it back for another worker."""

    def term(self) -> None:
        """Never deliver it again."""


class Lane(Protocol):
    """A pull loop over one lane's consumer. Rows, not messages, bound what it holds."""

    address: LaneAddress

    @property
    def num_credits(self) -> int:
        """Messages asked for and not yet come."""

    def finished(self, rows: int) -> None:
        """Rows of a delivery left the worker's hands (answered, dropped or handed back): room for more."""

    async def stop(self) -> None:
        """Ask for nothing more; what is in hand stays the holder's to settle. Credits still open are given up."""


OnDelivery = Callable[[Delivery], int]
"""Takes a delivery, returns how many rows it holds (0 if it was settled at once)."""
OnLost = Callable[[list[Delivery]], None]
"""These were in hand across a freeze or a lost connection to the consumer: drop them without a word."""


class RowWindow(Protocol):
    """Rows that lanes of one model share: made by `Transport.row_window`."""

    max_rows: int
    rows_in_hand: int

    def resize(self, max_rows: int) -> None:
        """From now on so many; what is in hand or asked for beyond it stays."""


class Transport(Protocol):
    """One connection to the broker."""

    name: str
    clock: BrokerClock

    @property
    def max_payload(self) -> int:
        """Bytes the broker takes in one message, from its INFO."""

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now."""

    @property
    def num_reconnects(self) -> int:
        """Connections after the first."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection is lost."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time it is back and the subscriptions stand again."""

    # -------- when things leave
    def at_tick_end(self, call: Callable[[], None]) -> None:
        """Call once, just before the next write: when what the socket gave has all been handed out or, outside a read,
        at the end of this loop tick. What `call` publishes leaves in that write, without another turn of the loop.
        """

    # -------- core messages
    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send at most once; whoever answers does so on `reply`, if given. Raises Disconnected, PayloadOverLimit."""

    def new_inbox(self, label: str) -> str:
        """A reply subject of this connection's own."""

    async def subscribe(self, subject: str, callback: OnMessage, queue: str = "") -> Subscription:
        """Deliver every message on `subject` (or one member's share of `queue`); returns once the broker has it."""

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """The first answer. Raises NoResponders, BrokerTimeout, Disconnected, PayloadOverLimit."""

    def reply(self, subject: str, payload: bytes) -> None:
        """Like publish; for answering a request."""

    # -------- streams
    def publish_stored(self, subject: str, payload: bytes, on_stored: OnStored) -> None:
        """Publish to a stream without waiting; `on_stored` is called exactly once: stored, full, gone or no answer.

        Raises Disconnected, PayloadOverLimit; `on_stored` is not called then. It is not called with a made-up answer
        on disconnect either: after 5 s without an answer it gets BrokerTimeout.
        """

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Create it, or check that what exists is equal. Raises SpecMismatch, BrokerTimeout, TransportError."""

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Likewise for a consumer."""

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Remove it; one that is not there is fine."""

    async def purge(self, stream: str, subject_filter: str) -> int:
        """Delete the stream's messages under the filter, those in workers' hands included; returns how many."""

    def delete_message(self, stream: str, sequence: int) -> None:
        """Delete one message, not awaited; one that is gone already is fine."""

    async def last_message(self, stream: str, subject: str) -> bytes | None:
        """The newest payload on exactly `subject`, or None."""

    async def put_message(self, subject: str, payload: bytes) -> int:
        """Store and wait for the sequence. Raises StreamFull, StreamGone, BrokerTimeout, Disconnected."""

    async def lane_backlog(self, spec: ConsumerSpec) -> tuple[int, int]:
        """(messages waiting, messages in workers' hands) of a consumer; StreamGone if it is not there."""

    # -------- lanes
    def row_window(self, max_rows: int) -> RowWindow:
        """A window that several lanes can share."""

    async def open_lane(
        self, address: LaneAddress, window: RowWindow, on_delivery: OnDelivery, *, is_always_open: bool = False
    ) -> Lane:
        """Create the lane's consumer if need be and pull from it. `is_always_open` lanes ask even when other lanes have
        filled the window (the `hi` lane, eager queues bound themselves by it): only their own rows, up to
        `max_rows`, hold them back.
        """

    def on_lost(self, callback: OnLost) -> None:
        """Tell what must be dropped (see Delivery)."""

    # -------- payloads by reference
    async def put_blob(self, owner: str, parts: list[bytes | memoryview]) -> BlobRef:
        """Store a large payload, joined from `parts`. Raises StreamFull, Disconnected, BrokerTimeout."""

    async def get_blob(self, ref: BlobRef) -> bytes:
        """The whole payload. Raises StreamGone if any part is missing (expired or purged)."""

    def purge_blob(self, ref: BlobRef) -> None:
        """Delete it, not awaited."""

    async def close(self) -> None:
        """Flush and close within two seconds."""
