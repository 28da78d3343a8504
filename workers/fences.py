"""Whose answer nobody waits for any more, and what was started alone before. Pure: no clock, no broker.

Cancels are kept until their deadline. A gateway is dead when it was heard once and then not for three seconds of our
own listening. Our own heartbeat comes back to us: while it does not (frozen, disconnected, a broker that hangs) it is
we who hear nothing, and silence counts against nobody. Dropping the requests of a gateway that lives would leave its
callers without an answer.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from contract.streams import BEAT_S, DEAD_AFTER_S

MAX_CANCELS: Final = 200_000
"""Ids remembered at most; the oldest go first. A forgotten cancel costs one needless execution."""
DEAF_AFTER_S: Final = 1.5 * BEAT_S
"""Without our own heartbeat; with the second between two of a gateway's it stays under DEAD_AFTER_S."""
FORGET_GATEWAY_S: Final = 3_600.0
"""A dead gateway is remembered longer than any of its requests can live."""


class Fences:
    """Cancels and gateway heartbeats, as one worker knows them."""

    __slots__ = ("_cancels", "_heard", "_heard_self_s")

    def __init__(self) -> None:
        self._cancels: dict[tuple[str, int], float] = {}
        self._heard: dict[str, float] = {}
        self._heard_self_s = float("-inf")

    def cancel(self, gateway: str, ids: list[int], until_s: float) -> None:
        """Nobody waits for these any more; remembered until `until_s`."""
        for request in ids:
            self._cancels[gateway, request] = until_s
        while len(self._cancels) > MAX_CANCELS:
            del self._cancels[next(iter(self._cancels))]

    def is_cancelled(self, gateway: str, request: int) -> bool:
        """Whether its caller has left."""
        return bool(self._cancels) and (gateway, request) in self._cancels

    @property
    def num_cancels(self) -> int:
        """Cancels remembered now."""
        return len(self._cancels)

    def hear(self, gateway: str, now_s: float) -> None:
        """A heartbeat of `gateway`."""
        self._heard[gateway] = now_s

    def dead_since_s(self, gateway: str, now_s: float) -> float | None:
        """When a dead gateway was last heard; None for one that lives, was never heard, or that we can't judge now."""
        heard_s = self._heard.get(gateway)
        if heard_s is None or now_s - heard_s <= DEAD_AFTER_S or now_s - self._heard_self_s > DEAF_AFTER_S:
            return None
        return heard_s

    def hear_self(self, now_s: float) -> None:
        """Our own heartbeat came back: we hear. If it did not for a while, everybody gets three seconds anew."""
        if now_s - self._heard_self_s > DEAF_AFTER_S:
            self.pardon(now_s)
        self._heard_self_s = now_s

    def pardon(self, now_s: float) -> None:
        """We could not hear for a while: nobody's silence until now counts."""
        for gateway in self._heard:
            self._heard[gateway] = now_s

    def sweep(self, now_s: float) -> None:
        """Forget cancels past their deadline and gateways that are long gone."""
        for key in [k for k, until_s in self._cancels.items() if until_s <= now_s]:
            del self._cancels[key]
        for gateway in [g for g, heard_s in self._heard.items() if now_s - heard_s > FORGET_GATEWAY_S]:
            del self._heard[gateway]


# ------------------------------------------------------------------ what was started alone


class StartedNote(msgspec.Struct, array_like=True, frozen=True):
    """The last word of whoever ran a request alone after a redelivery."""

    num_started: int = 0
    is_done: bool = False


Verdict = Literal["run", "answered", "poison"]
MAX_STARTED: Final = 2
"""So many workers died with the request running alone: it is the cause."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StartedNote).decode


def read_note(payload: bytes | None) -> StartedNote:
    """The note in a message of the started stream; none, or one that does not decode, counts as never started."""
    if payload is None:
        return StartedNote()
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        return StartedNote()


def write_note(note: StartedNote) -> bytes:
    """A note as it lies in the stream."""
    return _encode(note)


def judge(note: StartedNote) -> Verdict:
    """What a redelivered request's note says about running it (again)."""
    if note.is_done:
        return "answered"
    return "poison" if note.num_started >= MAX_STARTED else "run"
