"""Requests on their way into the broker: publishes what the coalescer cut, takes the broker's word for each message.

    entries → Message → publish_stored ─┬ Stored     sequence kept, to delete it when nobody waits any more
                                        ├ StreamFull all its requests end with QueueFull, at once
                                        ├ StreamGone the group is closed and recovered (recovery.py)
                                        └ no answer  deadline or recovery settle it

Nothing is published to a group whose gate is closed: its entries wait in the in-flight table for recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import structlog

from contract.errors import QueueFull, TooLarge, Unavailable
from gateway.coalescer import LaneQueue, cut, pack_requests
from gateway.inflight import Entry, Inflight
from transport.base import (
    BrokerTimeout,
    Disconnected,
    PayloadOverLimit,
    PublishOutcome,
    Stored,
    StreamFull,
    StreamGone,
    Transport,
    TransportError,
)

Fate = Literal["sent", "stored", "refused", "unknown"]
"""What the broker said of a message: nothing yet, it has it, it never had it, no answer."""

HEADER_ROOM_BYTES = 64 * 1024
"""Left of the broker's limit for what is not tensor bytes."""

log = structlog.get_logger("gateway.outbox")


class Message:
    """One published message. Its entries may end or move to another message before its fate is known."""

    __slots__ = ("_outbox", "entries", "epoch", "fate", "is_unwanted", "lane", "num_open", "sequence")

    def __init__(self, outbox: Outbox, lane: LaneQueue, entries: list[Entry]) -> None:
        self._outbox = outbox
        self.lane = lane
        self.entries = entries
        self.num_open = len(entries)
        self.epoch = outbox.epochs.get(lane.address.group, 0)
        self.fate: Fate = "sent"
        self.sequence = 0
        self.is_unwanted = False
        """Its last request ended without an answer: delete it as soon as its sequence is known."""

    def on_stored(self, outcome: PublishOutcome) -> None:
        """The broker's word, or none in time."""
        self._outbox.settle(self, outcome)


class Outbox:
    """Publishes for all groups of one gateway."""

    def __init__(
        self,
        transport: Transport,
        *,
        gateway: str,
        reply: str,
        inflight: Inflight,
        upload: Callable[[Entry], None],
        resend: Callable[[Entry], None],
        on_stream_gone: Callable[[str], None],
    ) -> None:
        self._transport = transport
        self._gateway = gateway
        self._reply = reply
        self._inflight = inflight
        self._upload = upload
        self._resend = resend
        self._on_stream_gone = on_stream_gone
        self.max_inline_bytes = transport.max_payload - HEADER_ROOM_BYTES
        self.open_groups: set[str] = set()
        """Groups whose stream is there, as far as we know."""
        self.epochs: dict[str, int] = {}
        """Per group, how often it was recovered. What the broker says of an older message does not concern the stream
        of now, whose sequences begin anew.
        """
        self.num_messages = 0
        self.num_published = 0
        self.num_deleted = 0

    def reopen(self, group: str) -> None:
        """The group's stream is there, perhaps a new one."""
        self.epochs[group] = self.epochs.get(group, 0) + 1
        self.open_groups.add(group)

    def send(self, lane: LaneQueue, entries: list[Entry]) -> None:
        """Publish them, or leave them to recovery while the group's gate is closed."""
        if lane.address.group not in self.open_groups:
            return
        limit = self.max_inline_bytes
        small = [entry for entry in entries if entry.body_bytes <= limit]
        for piece in cut(small, lane.max_rows):
            self.publish(lane, piece)
        if len(small) != len(entries):
            for entry in entries:
                if entry.body_bytes > limit:
                    self._upload(entry)

    def publish(self, lane: LaneQueue, entries: list[Entry]) -> None:
        """One message."""
        message = Message(self, lane, entries)
        payload = pack_requests(lane, entries, self._gateway, self._reply, self._transport.clock.offset_s)
        try:
            self._transport.publish_stored(lane.subject, payload, message.on_stored)
        except Disconnected:
            return
        except PayloadOverLimit as e:
            self._publish_apart(lane, entries, e)
            return
        for entry in entries:
            entry.message = message
            entry.is_published = True
        self.num_messages += 1
        self.num_published += len(entries)

    def settle(self, message: Message, outcome: PublishOutcome) -> None:
        """Take the broker's word for a message."""
        entries, message.entries = message.entries, []
        if isinstance(outcome, Stored):
            message.fate, message.sequence = "stored", outcome.sequence
            if message.is_unwanted:
                self.delete(message)
        elif isinstance(outcome, BrokerTimeout):
            message.fate = "unknown"
            log.warning("publish-unanswered", subject=message.lane.subject, error=str(outcome))
        elif isinstance(outcome, StreamGone):
            message.fate = "refused"
            self._stream_gone(message, [e for e in entries if e.message is message and e.is_open])
        else:
            message.fate = "refused"
            self._refuse(message, entries, outcome)

    def forget(self, entry: Entry, *, is_settled: bool) -> None:
        """The entry ended: a message that nobody waits for any more is taken back from the broker."""
        message = entry.message
        if message is None:
            return
        message.num_open -= 1
        if message.num_open == 0 and not is_settled:
            message.is_unwanted = True
            if message.fate == "stored":
                self.delete(message)

    def delete(self, message: Message) -> None:
        """Take a stored message back, in a worker's hand or not; never by a number of another stream's life."""
        if not self._is_current(message):
            return
        try:
            self._transport.delete_message(message.lane.address.stream, message.sequence)
        except Disconnected:
            return
        self.num_deleted += 1

    def _refuse(self, message: Message, entries: list[Entry], error: TransportError) -> None:
        """The broker did not take it, and will not."""
        group = message.lane.address.group
        for entry in entries:
            if entry.message is message:
                entry.message = None
                refusal = (
                    QueueFull(f"the queue of group {group!r} is full: {error}")
                    if isinstance(error, StreamFull)
                    else Unavailable(f"the broker refused the request for group {group!r}: {error}")
                )
                self._inflight.end(entry, refusal, is_settled=True)

    def _stream_gone(self, message: Message, entries: list[Entry]) -> None:
        """The stream never had them: they go again once it is there."""
        if self._is_current(message):
            self._on_stream_gone(message.lane.address.group)
            return
        if message.lane.address.group not in self.open_groups:
            return  # recovery finds them in the table
        for entry in entries:
            entry.message = None
            self._resend(entry)

    def _is_current(self, message: Message) -> bool:
        group = message.lane.address.group
        return group in self.open_groups and message.epoch == self.epochs.get(group, 0)

    def _publish_apart(self, lane: LaneQueue, entries: list[Entry], error: PayloadOverLimit) -> None:
        """Large headers: what does not fit together may fit alone, what does not fit alone never will."""
        if len(entries) > 1:
            for entry in entries:
                self.publish(lane, [entry])
            return
        reason = f"the request's message has {error.payload_bytes} bytes, the broker takes {error.max_bytes}"
        self._inflight.end(entries[0], TooLarge(reason), is_settled=True)
