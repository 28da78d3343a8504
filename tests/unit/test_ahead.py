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


ROWS = 8


def reach(num_instances: int = 1) -> tuple[Reach, FakeLoop, list[int | None]]:
    loop, told = FakeLoop(), cast("list[int | None]", [])
    return Reach(cast("asyncio.AbstractEventLoop", cast("Any", loop)), num_instances, ROWS, told.append), loop, told


def run_long(made: Reach) -> None:
    for _ in range(20):
        made.started(3)
        made.ended(3, 0.05)


def test_short_executions_set_no_limit() -> None:
    made, loop, told = reach()
    for _ in range(5):
        made.started(3)
        made.ended(3, LONG_S / 2)
    assert (told, loop.due) == ([], None)


def test_during_a_long_execution_successors_are_taken_late() -> None:
    made, loop, told = reach()
    run_long(made)
    assert told[-1] == ROWS
    made.started(3)
    assert told[-1] == 3
    assert loop.due is not None
    assert 0.5 * 0.05 < loop.due[0] < 0.8 * 0.05
    loop.fire()
    assert told[-1] == 3 + ROWS
    made.ended(3, 0.05)
    assert told[-1] == ROWS


def test_an_idle_instance_has_room_while_another_runs() -> None:
    made, loop, told = reach(num_instances=2)
    run_long(made)
    made.started(3)
    assert told[-1] == 3 + ROWS
    first = loop.due
    made.started(8)
    assert told[-1] == 3 + 8
    assert loop.due is first


def test_a_version_that_leaves_holds_nobody_back() -> None:
    made, _, told = reach()
    run_long(made)
    made.close()
    assert told[-1] is None


def test_a_shorter_execution_is_believed_at_once_and_a_longer_one_slowly() -> None:
    ahead = Ahead()
    ahead.note(0.09)
    assert ahead.pause_s == 0.0
    for _ in range(50):
        ahead.note(0.1)
    assert ahead.pause_s > 0.05
    ahead.note(0.001)
    assert ahead.pause_s == 0.0
