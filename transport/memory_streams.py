"""Streams and consumers of the in-process broker: what JetStream does with messages, pulls and acks. No loop, no timer.

Every call takes the time; what must be sent goes through `Send`. Kept to what base.py needs and a real server does
alike: tests/conformance runs one suite over both.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from contract.streams import NS_PER_S

MESSAGE_OVERHEAD_BYTES: Final = 16
FULL: Final = 10077
NAK_DELAY = msgspec.json.Decoder(dict[str, int]).decode

Send = Callable[[bytes, bytes, bytes, bytes, bytes], bool]
"""(to subject, shown subject, reply, payload, header) -> whether anybody was there"""


class Refused(Exception):
    """An answer with an `error`."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = description


class StoredMessage(NamedTuple):
    """One message of a stream."""

    subject: bytes
    payload: bytes
    stored_s: float


@dataclass(slots=True)
class Pull:
    """An open MSG.NEXT."""

    inbox: bytes
    left: int
    bytes_left: int
    expires_s: float
    heartbeat_s: float
    next_beat_s: float

    def status(self, line: str) -> bytes:
        """A status that gives the rest of the credits back."""
        return f"NATS/1.0 {line}\r\nNats-Pending-Messages: {self.left}\r\n\r\n".encode()


@dataclass(slots=True)
class InHand:
    """A delivered message that is not acked."""

    until_s: float
    num_delivered: int


def matches(pattern: str, subject: str) -> bool:
    """NATS subject matching: `*` is one token, a last `>` one or more."""
    wanted, found = pattern.split("."), subject.split(".")
    for i, part in enumerate(wanted):
        if part == ">":
            return len(found) > i
        if i >= len(found) or part not in ("*", found[i]):
            return False
    return len(wanted) == len(found)


def overlaps(a: str, b: str) -> bool:
    """Whether some subject matches both."""
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if ">" in (x, y):
            return True
        if "*" not in (x, y) and x != y:
            return False
    return a.count(".") == b.count(".")


@dataclass(slots=True)
class MemoryStream:
    """One stream."""

    config: dict[str, Any]
    created: str
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    consumers: dict[str, MemoryConsumer] = field(default_factory=dict)
    last_sequence: int = 0
    size_bytes: int = 0
    per_subject: Counter[bytes] = field(default_factory=Counter)

    def store(self, subject: bytes, payload: bytes, now_s: float) -> int:
        """Its sequence. Raises Refused when a limit is reached."""
        limit = self.config
        size = len(subject) + len(payload) + MESSAGE_OVERHEAD_BYTES
        is_new = limit["discard"] == "new"
        if 0 < limit["max_msgs_per_subject"] <= self.per_subject[subject]:
            if limit["discard_new_per_subject"]:
                raise Refused(503, FULL, "maximum messages per subject exceeded")
            self.remove(next(s for s, m in self.messages.items() if m.subject == subject))
        while 0 <= limit["max_msgs"] <= len(self.messages):
            if is_new:
                raise Refused(503, FULL, "maximum messages exceeded")
            self.remove(next(iter(self.messages)))
        while 0 <= limit["max_bytes"] < self.size_bytes + size:
            if is_new or not self.messages:
                raise Refused(503, FULL, "maximum bytes exceeded")
            self.remove(next(iter(self.messages)))
        self.last_sequence += 1
        self.messages[self.last_sequence] = StoredMessage(subject, payload, now_s)
        self.size_bytes += size
        self.per_subject[subject] += 1
        return self.last_sequence

    def remove(self, sequence: int) -> bool:
        """Delete one message; whether it was there."""
        message = self.messages.pop(sequence, None)
        if message is None:
            return False
        self.size_bytes -= len(message.subject) + len(message.payload) + MESSAGE_OVERHEAD_BYTES
        self.per_subject[message.subject] -= 1
        for consumer in self.consumers.values():
            consumer.in_hand.pop(sequence, None)
        return True

    def purge(self, subject_filter: str) -> int:
        """Delete what matches."""
        gone = [s for s, m in self.messages.items() if matches(subject_filter, m.subject.decode())]
        return sum(self.remove(s) for s in gone)

    def last(self, subject: bytes) -> StoredMessage | None:
        """The newest message on exactly `subject`."""
        if not self.per_subject[subject]:
            return None
        return next(m for m in reversed(self.messages.values()) if m.subject == subject)

    def tick(self, now_s: float, send: Send) -> None:
        """Expire messages, deliveries and pulls."""
        max_age_s = self.config["max_age"] / NS_PER_S
        while max_age_s and self.messages:
            sequence, message = next(iter(self.messages.items()))
            if message.stored_s + max_age_s > now_s:
                break
            self.remove(sequence)
        for consumer in self.consumers.values():
            consumer.tick(now_s, send)


@dataclass(slots=True)
class MemoryConsumer:
    """A durable pull consumer with explicit acks."""

    stream: MemoryStream
    config: dict[str, Any]
    created: str
    unix_offset_s: float
    next_sequence: int = 1
    num_sent: int = 0
    in_hand: dict[int, InHand] = field(default_factory=dict)
    deliveries: Counter[int] = field(default_factory=Counter)
    again: deque[int] = field(default_factory=deque)
    delayed: dict[int, float] = field(default_factory=dict)
    pulls: deque[Pull] = field(default_factory=deque)

    def pull(self, request: dict[str, int], inbox: bytes, now_s: float, send: Send) -> None:
        """A MSG.NEXT request."""
        if len(self.pulls) >= self.config["max_waiting"]:
            send(inbox, inbox, b"", b"", b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n")
            return
        beat_s = request.get("idle_heartbeat", 0) / NS_PER_S
        expires_s = now_s + request.get("expires", 30 * NS_PER_S) / NS_PER_S
        max_bytes = request.get("max_bytes", 1 << 62)
        self.pulls.append(Pull(inbox, request.get("batch", 1), max_bytes, expires_s, beat_s, now_s + beat_s))
        self.pump(now_s, send)

    def pump(self, now_s: float, send: Send) -> None:
        """Serve open pulls in turn while there are messages."""
        while self.pulls and len(self.in_hand) < self.config["max_ack_pending"]:
            sequence = self._next()
            if sequence is None:
                return
            if not self._deliver(sequence, now_s, send):
                self.again.appendleft(sequence)

    def ack(self, sequence: int, verb: bytes, now_s: float, send: Send) -> None:
        """What a holder said. A late word about a message that is in other hands counts too, as on a real server."""
        held = self.in_hand.get(sequence)
        if held is None:
            return
        if verb.startswith(b"+WPI"):
            held.until_s = now_s + self.config["ack_wait"] / NS_PER_S
            return
        del self.in_hand[sequence]
        if verb.startswith(b"-NAK"):
            delay_ns = NAK_DELAY(verb[5:])["delay"] if len(verb) > 5 else 0
            if delay_ns:
                self.delayed[sequence] = now_s + delay_ns / NS_PER_S
            else:
                self.again.append(sequence)
        else:
            self.deliveries.pop(sequence, None)
            if self.stream.config["retention"] == "workqueue":
                self.stream.remove(sequence)
        self.pump(now_s, send)

    def tick(self, now_s: float, send: Send) -> None:
        """Redeliver what was silent too long, end pulls, send heartbeats."""
        for sequence in [s for s, h in self.in_hand.items() if h.until_s <= now_s]:
            del self.in_hand[sequence]
            self.again.append(sequence)
        for sequence in [s for s, due_s in self.delayed.items() if due_s <= now_s]:
            del self.delayed[sequence]
            self.again.append(sequence)
        for pull in list(self.pulls):
            if pull.expires_s <= now_s:
                self.pulls.remove(pull)
                send(pull.inbox, pull.inbox, b"", b"", pull.status("408 Request Timeout"))
            elif pull.heartbeat_s and pull.next_beat_s <= now_s:
                pull.next_beat_s = now_s + pull.heartbeat_s
                send(pull.inbox, pull.inbox, b"", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")
        self.pump(now_s, send)

    def num_pending(self) -> int:
        """Messages never delivered or waiting to be delivered again."""
        new = sum(1 for s, m in self.stream.messages.items() if s >= self.next_sequence and self._takes(m))
        return new + sum(1 for s in (*self.again, *self.delayed) if s in self.stream.messages)

    def deleted(self, send: Send) -> None:
        """Tell those who wait."""
        for pull in self.pulls:
            send(pull.inbox, pull.inbox, b"", b"", b"NATS/1.0 409 Consumer Deleted\r\n\r\n")
        self.pulls.clear()

    def _takes(self, message: StoredMessage) -> bool:
        return matches(self.config["filter_subject"], message.subject.decode())

    def _next(self) -> int | None:
        while self.again:
            sequence = self.again.popleft()
            if sequence in self.stream.messages:
                return sequence
        while self.next_sequence <= self.stream.last_sequence:
            sequence = self.next_sequence
            self.next_sequence += 1
            message = self.stream.messages.get(sequence)
            if message is not None and self._takes(message):
                return sequence
        return None

    def _deliver(self, sequence: int, now_s: float, send: Send) -> bool:
        message = self.stream.messages[sequence]
        size = len(message.subject) + len(message.payload) + MESSAGE_OVERHEAD_BYTES
        while self.pulls:
            pull = self.pulls.popleft()
            if size > pull.bytes_left:
                send(pull.inbox, pull.inbox, b"", b"", pull.status("409 Message Size Exceeds MaxBytes"))
                continue
            count = self.deliveries[sequence] + 1
            stored_ns = int((message.stored_s + self.unix_offset_s) * NS_PER_S)
            ack = (
                f"$JS.ACK.{self.stream.config['name']}.{self.config['name']}"
                f".{count}.{sequence}.{self.num_sent + 1}.{stored_ns}.0"
            )
            self.in_hand[sequence] = InHand(now_s + self.config["ack_wait"] / NS_PER_S, count)
            if not send(pull.inbox, message.subject, ack.encode(), message.payload, b""):
                del self.in_hand[sequence]  # whoever pulled has left
                continue
            self.deliveries[sequence] = count
            self.num_sent += 1
            pull.left -= 1
            pull.bytes_left -= size
            if pull.left > 0:
                self.pulls.append(pull)
            return True
        return False
