"""Keeping a `BrokerClock` right from what the broker says. Pure.

Two sources: a question whose answer carries the broker's time (its error is at most half the round trip), and the store
time of each delivered message, which can't lie in the future.

Source: docs/decisions/0001-pull-with-credits.md; the server's time is in every `$SYS.REQ.USER.INFO` answer.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

import msgspec

from contract.deadline import BrokerClock

ASK_SUBJECT: Final = b"$SYS.REQ.USER.INFO"
ASK_EACH_S: Final = 10.0
GOOD_ROUND_TRIP_S: Final = 0.02
"""A slower answer says little about the clock."""


class _Server(msgspec.Struct):
    time: datetime


class _UserInfo(msgspec.Struct):
    server: _Server


_decode = msgspec.json.Decoder(_UserInfo).decode


def host_clock(monotonic_s: float) -> BrokerClock:
    """What is true while broker and process share a host, and a start elsewhere."""
    return BrokerClock(time.time() - monotonic_s)


def observe_answer(clock: BrokerClock, answer: bytes, sent_s: float, got_s: float) -> None:
    """Take the server time in an answer to ASK_SUBJECT; one that has none or took long is passed over."""
    if got_s - sent_s > GOOD_ROUND_TRIP_S:
        return
    try:
        seen = _decode(answer).server.time
    except msgspec.MsgspecError:
        return
    clock.observe(seen.timestamp(), (sent_s + got_s) / 2)


def observe_stored(clock: BrokerClock, stored_unix_s: float, now_s: float) -> None:
    """A message can't have been stored after now: if it seems so, our idea of the broker's clock is late."""
    late_s = stored_unix_s - (now_s + clock.offset_s)
    if late_s > 0:
        clock.offset_s += late_s
