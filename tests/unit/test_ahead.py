"""How far ahead of a running micro-batch rows are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from workers.ahead import LONG_S, Ahead, Reach


class FakeLoop:
    """Keeps the one timer that `Reach` sets."""

    def __init__(self) -> None:
        self.due: tuple[float, Callable[[], None]] | None = None

    def call_later(self, delay_s: float, call: Callable[..., None], *args: object) -> FakeLoop:
        self.due = (delay_s, lambda: call(*args))
        return self

    def cancel(self) -> None:
        self.due = None

    def fire(self) -> None:
        assert self.due is not None
        self.due[1]()


def reach() -> tuple[Reach, FakeLoop, list[bool]]:
    loop, told = FakeLoop(), cast("list[bool]", [])
    return Reach(cast("asyncio.AbstractEventLoop", cast("Any", loop)), told.append), loop, told


def test_short_executions_take_their_successors_from_the_start() -> None:
    made, loop, told = reach()
    for _ in range(5):
        made.started()
        made.ended(LONG_S / 2)
    assert (told, loop.due) == ([], None)


def test_during_a_long_execution_rows_are_taken_late_and_after_it_not_yet() -> None:
    made, loop, told = reach()
    for _ in range(20):
        made.started()
        made.ended(0.05)
    assert told == [False]
    made.started()
    assert loop.due is not None
    assert 0.5 * 0.05 < loop.due[0] < 0.8 * 0.05
    loop.fire()
    assert told == [False, True]
    made.ended(0.05)
    assert told == [False, True, False]


def test_with_two_instances_the_first_to_come_near_its_end_asks() -> None:
    made, loop, _ = reach()
    for _ in range(20):
        made.started()
        made.ended(0.05)
    made.started()
    first = loop.due
    made.started()
    assert loop.due is first


def test_a_version_that_leaves_holds_nobody_back() -> None:
    made, _, told = reach()
    for _ in range(20):
        made.started()
        made.ended(0.05)
    made.close()
    assert told[-1] is True


def test_a_shorter_execution_is_believed_at_once_and_a_longer_one_slowly() -> None:
    ahead = Ahead()
    ahead.note(0.09)
    assert ahead.pause_s == 0.0
    for _ in range(50):
        ahead.note(0.1)
    assert ahead.pause_s > 0.05
    ahead.note(0.001)
    assert ahead.pause_s == 0.0
