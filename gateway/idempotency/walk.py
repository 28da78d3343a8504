"""What a request with an idempotency key is to do, from what the broker has under it. Decides only.

Under one key there are attempts 0, 1, 2, …, each a claim (who runs it, until when) and an end (its answer, or that it
never ran). Both are written first-wins, so that of two gateways one gets each attempt:

    end?  answer → replay it, or mismatch      free → next attempt
    claim?  none → take it      of another body → mismatch      lease over → next attempt      else → wait

Invariants: an attempt is taken only where no earlier one has an answer or may still run
(tests/unit/test_idempotency.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final

import msgspec

from contract.errors import InvalidInput

MAX_KEY_CHARS: Final = 255
NEVER_RAN: Final = frozenset(
    {
        "invalid-input",
        "text-too-long",
        "unauthenticated",
        "forbidden",
        "not-found",
        "too-large",
        "limit-reached",
        "queue-full",
        "queue-timeout",
        "no-worker",
        "model-not-ready",
        "draining",
        "not-supported",
    }
)
"""Codes of refusals before an execution: the key is free again at once."""
RAN: Final = frozenset({"", "model-failed", "poison-request", "execution-timeout", "instance-died"})
"""Codes whose answer is kept, the good answer's included. After any other a worker may still run the request: the
lease stays until the deadline, past which none begins it.
"""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One attempt is being made."""

    fingerprint: bytes
    lease_unix_ms: int
    """The request's deadline and a little more, on the broker's clock: then nothing of it runs any more."""


class End(msgspec.Struct, frozen=True, array_like=True):
    """How an attempt ended. `status` 0: it never ran."""

    fingerprint: bytes
    status: int
    headers: dict[str, str]
    body: bytes
    lost_bytes: int = 0
    """Size of an answer that was too large to keep."""


class Step(Enum):
    """What to do where there is no answer to replay."""

    TAKE = "take"
    NEXT = "next"
    WAIT = "wait"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Replay:
    """The stored answer."""

    end: End


def judge(claim: Claim | None, end: End | None, fingerprint: bytes, now_unix_ms: int) -> Step | Replay:
    """One attempt's place in the walk."""
    if end is not None:
        if not end.status:
            return Step.NEXT
        return Replay(end) if end.fingerprint == fingerprint else Step.MISMATCH
    if claim is None:
        return Step.TAKE
    if now_unix_ms > claim.lease_unix_ms:
        return Step.NEXT
    return Step.WAIT if claim.fingerprint == fingerprint else Step.MISMATCH


def is_kept(code: str) -> bool | None:
    """Whether an answer with this error code, empty for none, is kept; None leaves the lease to run out."""
    if code in RAN:
        return True
    return False if code in NEVER_RAN else None


def check_key(values: list[str]) -> str:
    """The key of a request's headers. Raises InvalidInput."""
    if len(values) != 1:
        raise InvalidInput("header Idempotency-Key is given more than once")
    key = values[0]
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"header Idempotency-Key must be 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return key


def token(tenant: str, key: str) -> str:
    """The subject token of a tenant's key: nothing that a caller spells reaches a subject."""
    return _digest(tenant.encode(), key.encode()).hex()


def fingerprint(*parts: bytes | bytearray) -> bytes:
    """Of everything that makes a request what it is: route, headers that change its meaning, body."""
    return _digest(*parts)


def _digest(*parts: bytes | bytearray) -> bytes:
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
