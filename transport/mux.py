"""Reply and ack inboxes: one subscription each, a number per question. Knows nothing of streams' contents.

`AckMux` is the hot path: no future, no timer, no closure per publish; one sweep finds what was never answered.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from transport.base import (
    BrokerTimeout,
    NoResponders,
    OnStored,
    PublishOutcome,
    Stored,
    StreamFull,
    StreamGone,
    TransportError,
)
from transport.link import NO_RESPONDERS, Link, call_safely, status_of

ACK_TIMEOUT_S: Final = 5.0
FULL_CODES: Final = frozenset({10023, 10028, 10047, 10077, 10122})
"""Insufficient resources, account limit, storage, stream limits, limit per subject."""
NO_STREAM: Final = 10059


class ApiError(msgspec.Struct):
    """The `error` of a JetStream answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct):
    """A stream's answer to a publish."""

    seq: int = 0
    error: ApiError | None = None


_decode_ack = msgspec.json.Decoder(PubAck).decode


def outcome_of(payload: bytes, header: bytes) -> PublishOutcome:
    """What a stream's answer says."""
    if header and status_of(header) == NO_RESPONDERS:
        return StreamGone("no stream takes this subject")
    try:
        ack = _decode_ack(payload)
    except msgspec.MsgspecError:
        return TransportError(f"not a publish ack: {payload[:80]!r}")
    if ack.error is None:
        return Stored(ack.seq)
    if ack.error.err_code in FULL_CODES:
        return StreamFull(ack.error.description)
    if ack.error.err_code == NO_STREAM:
        return StreamGone(ack.error.description)
    return TransportError(f"{ack.error.description} ({ack.error.err_code})")


class AckMux:
    """Publishes whose acks are called back and never awaited."""

    def __init__(self, link: Link, inbox: str, now_s: Callable[[], float]) -> None:
        self._link = link
        self._inbox = inbox
        self._prefix = f"{inbox}.".encode()
        self._skip = len(self._prefix)
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, tuple[float, OnStored]] = {}
        self._tick_s = now_s()

    async def start(self) -> None:
        """Listen."""
        await self._link.listen(f"{self._inbox}.*", self._on_ack)

    def publish(self, subject: bytes, payload: bytes, on_stored: OnStored) -> None:
        """Raises Disconnected, PayloadOverLimit; then `on_stored` is not called."""
        number = b"%x" % next(self._numbers)
        self._link.send(subject, payload, self._prefix + number)
        # The last sweep's time is near enough and saves a look at the clock for each publish.
        self._waiting[number] = (self._tick_s, on_stored)

    def sweep(self, now_s: float) -> None:
        """Each half second: give up on what is too old. Numbers grow, so the oldest come first."""
        self._tick_s = now_s
        late = list(itertools.takewhile(self._is_late, self._waiting.items()))
        for number, _ in late:
            del self._waiting[number]
        for _, (_, on_stored) in late:
            call_safely(on_stored, BrokerTimeout(f"no publish ack within {ACK_TIMEOUT_S:g} s"))

    def _is_late(self, item: tuple[bytes, tuple[float, OnStored]]) -> bool:
        return self._tick_s - item[1][0] >= ACK_TIMEOUT_S

    def _on_ack(self, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        del reply
        found = self._waiting.pop(subject[self._skip :], None)
        if found is not None:
            found[1](outcome_of(payload, header))


class Answer(NamedTuple):
    """The first answer to a question."""

    payload: bytes
    header: bytes


class RequestMux:
    """Questions that are awaited."""

    def __init__(self, link: Link, inbox: str) -> None:
        self._link = link
        self._inbox = inbox
        self._prefix = f"{inbox}.".encode()
        self._skip = len(self._prefix)
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, asyncio.Future[Answer]] = {}

    async def start(self) -> None:
        """Listen."""
        await self._link.listen(f"{self._inbox}.*", self._on_answer)

    async def ask(self, subject: bytes, payload: bytes, timeout_s: float) -> Answer:
        """The first answer, whatever its status. Raises NoResponders, BrokerTimeout, Disconnected, PayloadOverLimit."""
        number = b"%x" % next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._link.send(subject, payload, self._prefix + number)
            async with asyncio.timeout(timeout_s):
                answer = await future
        except TimeoutError:
            raise BrokerTimeout(f"{subject.decode()}: no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]
        if answer.header and status_of(answer.header) == NO_RESPONDERS:
            raise NoResponders(f"nobody listens on {subject.decode()}")
        return answer

    def _on_answer(self, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        del reply
        future = self._waiting.get(subject[self._skip :])
        if future is not None and not future.done():
            future.set_result(Answer(payload, header))
