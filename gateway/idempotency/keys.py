"""Idempotency keys on the broker: claims an attempt, waits for another's answer, keeps the own one. walk.py decides.

Invariants: of all gateways one gets an attempt; without the broker none does (tests/integration/test_idempotency.py).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from contract.errors import BrokerAway, HeadraceError, IdempotencyMismatch, TooLarge, Unavailable
from contract.streams import idempotency_stream
from contract.subjects import idempotency_subject
from gateway.idempotency.walk import Claim, End, Replay, Step, is_kept, judge
from transport.base import StreamFull, StreamGone, Transport, TransportError

MAX_ATTEMPTS: Final = 64
"""Attempts under one key that never ran or lost their gateway; then the caller takes another key."""
LEASE_GUARD_MS: Final = 2_000
"""A lease outlives the deadline by this: clocks of two gateways and the last answer on its way."""
FIRST_POLL_S: Final = 0.02
LONGEST_POLL_S: Final = 0.5

log = structlog.get_logger("gateway.idempotency")

_claims = msgspec.msgpack.Decoder(Claim)
_ends = msgspec.msgpack.Decoder(End)
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Taken:
    """This gateway runs the request; `Keys.settle` says how it ended."""

    token: str
    attempt: int
    fingerprint: bytes


class Keys:
    """All keys, as one gateway sees them. It remembers none: memory is the broker's, and bounded there."""

    def __init__(self, transport: Transport, max_answer_bytes: int) -> None:
        self._transport = transport
        self._spec = idempotency_stream()
        self._max_answer_bytes = max_answer_bytes

    async def take(self, token: str, fingerprint: bytes, within_s: float) -> Taken | End:
        """The right to run it, or the answer of whoever did; waits for one that runs.

        Raises:
            IdempotencyMismatch: the key is another request's.  BrokerAway: nobody can tell.
            Unavailable: it still runs after `within_s`, or there is no room for another key.
        """
        end_s = time.monotonic() + within_s
        poll_s, attempt = FIRST_POLL_S, 0
        try:
            while attempt < MAX_ATTEMPTS:
                step = await self._look(token, attempt, fingerprint)
                if isinstance(step, Replay):
                    return _told(step.end)
                if step is Step.MISMATCH:
                    raise IdempotencyMismatch("this Idempotency-Key was used for another request")
                if step is Step.NEXT:
                    attempt += 1
                elif step is Step.TAKE:
                    if await self._claim(token, attempt, fingerprint, within_s):
                        return Taken(token, attempt, fingerprint)
                elif time.monotonic() > end_s:
                    raise Unavailable("the first request with this Idempotency-Key still runs")
                else:
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, LONGEST_POLL_S)
        except (TransportError, TimeoutError) as e:
            raise BrokerAway(f"whether this Idempotency-Key was used can't be told now: {e}") from e
        raise Unavailable(f"{MAX_ATTEMPTS} attempts under this Idempotency-Key came to nothing; take another key")

    async def settle(self, taken: Taken, code: str, status: int, headers: dict[str, str], body: bytes) -> None:
        """The attempt is over, with an error's `code` or an answer. Never raises: the caller gets its answer anyway."""
        kept = is_kept(code)
        if kept is None:
            return
        end = End(taken.fingerprint, 0, {}, b"")
        if kept and len(body) > self._max_answer_bytes:
            end = End(taken.fingerprint, status, {}, b"", lost_bytes=len(body))
        elif kept:
            end = End(taken.fingerprint, status, headers, body)
        try:
            await self._transport.put_message(idempotency_subject(taken.token, taken.attempt, "end"), _encode(end))
        except (TransportError, TimeoutError) as e:
            log.warning("answer-not-kept", token=taken.token, error=str(e))

    async def _look(self, token: str, attempt: int, fingerprint: bytes) -> Step | Replay:
        # The end first: it is written after the claim and outlives it.
        end = await self._read(idempotency_subject(token, attempt, "end"))
        claim = None if end is not None else await self._read(idempotency_subject(token, attempt, "claim"))
        return judge(
            None if claim is None else _claims.decode(claim),
            None if end is None else _ends.decode(end),
            fingerprint,
            self._now_ms(),
        )

    async def _read(self, subject: str) -> bytes | None:
        try:
            return await self._transport.last_message(self._spec.name, subject)
        except StreamGone:
            await self._transport.ensure_stream(self._spec)
            return await self._transport.last_message(self._spec.name, subject)

    async def _claim(self, token: str, attempt: int, fingerprint: bytes, within_s: float) -> bool:
        """Whether it is ours. Between our look and now its whole life may have passed: its end counts."""
        subject = idempotency_subject(token, attempt, "claim")
        claim = Claim(fingerprint, self._now_ms() + int(within_s * 1000) + LEASE_GUARD_MS)
        try:
            await self._transport.put_message(subject, _encode(claim))
        except StreamFull:
            if await self._read(subject) is None:
                raise Unavailable("there is no room for another Idempotency-Key now") from None
            return False
        return await self._read(idempotency_subject(token, attempt, "end")) is None

    def _now_ms(self) -> int:
        return self._transport.clock.now_ms(time.monotonic())


def _told(end: End) -> End:
    if end.lost_bytes:
        raise TooLarge(f"the request ran; its answer of {end.lost_bytes} bytes was too large to be kept")
    return end


def code_of(error: BaseException) -> str:
    """The error's code; that of a fault of ours where it is none of the tree."""
    return error.code if isinstance(error, HeadraceError) else "internal-error"
