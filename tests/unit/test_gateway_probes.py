"""When a model's presence is asked for, and what a starting worker is told."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from contract.deadline import BrokerClock
from contract.envelope import unpack
from contract.messages import CancelMessage
from gateway import cancels
from gateway.cancels import Cancels
from gateway.coalescer import ModelWatch
from gateway.presence import due_probes
from tests.support.waiting import Inbox

KEY = ("default", "tiny")


def test_silence_is_asked_about_after_50_ms_and_then_less_and_less_often() -> None:
    watch = ModelWatch(*KEY)
    watch.opened(10.0)
    asked = [n / 100 for n in range(1000, 1700) if due_probes([watch], n / 100)]
    assert asked[0] == pytest.approx(10.05, abs=0.011)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert all(later > earlier - 0.02 for earlier, later in pairwise(gaps)), "the pauses grow"
    assert max(gaps) == pytest.approx(1.0, abs=0.03)
    assert len(asked) < 15


def test_an_answer_or_an_idle_model_needs_no_asking() -> None:
    watch = ModelWatch(*KEY)
    assert due_probes([watch], 100.0) == []
    watch.opened(100.0)
    watch.answered(100.04)
    assert due_probes([watch], 100.08) == []
    assert due_probes([watch], 100.1) == [KEY]
    watch.num_open -= 1
    assert due_probes([watch], 200.0) == []


class Told:
    """A transport that keeps what was published."""

    def __init__(self) -> None:
        self.clock = BrokerClock(1000.0)
        self.messages = Inbox()

    def publish(self, subject: str, payload: bytes) -> None:
        self.messages.append((subject, unpack(CancelMessage, payload)[0]))


def entry(number: int, deadline_s: float, group: str = "default") -> SimpleNamespace:
    lane = SimpleNamespace(address=SimpleNamespace(group=group))
    return SimpleNamespace(id=number, lane=lane, request=SimpleNamespace(deadline_s=deadline_s))


async def test_cancels_of_a_tick_share_a_message_per_group() -> None:
    told = Told()
    made = Cancels(told, "g", lambda: 1.0)  # type: ignore[arg-type]
    for number, group in ((1, "a"), (2, "b"), (3, "a")):
        made.add(entry(number, 5.0 + number, group))  # type: ignore[arg-type]
    await told.messages.has(2)
    assert [(s, m.ids, m.deadline_unix_ms) for s, m in told.messages] == [
        ("cancel.a", [1, 3], 1_008_000),
        ("cancel.b", [2], 1_007_000),
    ]


async def test_only_cancels_whose_deadline_is_ahead_are_told_to_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "MAX_KEPT", 3)
    now_s = [1.0]
    made = Cancels(Told(), "g", lambda: now_s[0])  # type: ignore[arg-type]
    for number in range(1, 6):
        made.add(entry(number, 10.0 + number))  # type: ignore[arg-type]
    assert unpack(CancelMessage, made.open_message("default"))[0].ids == [3, 4, 5]
    now_s[0] = 14.5
    assert unpack(CancelMessage, made.open_message("default"))[0].ids == [5]
    assert unpack(CancelMessage, made.open_message("other"))[0].ids == []
