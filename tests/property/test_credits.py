"""Credits: whatever arrives, is lost or comes back, a lane neither starves nor asks for more than there is room for."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transport.credits import LAPSE_S, RAMP_START, CreditBook, RowWindow


class Broker:
    """What the broker knows of one lane: its open pulls, oldest first."""

    def __init__(self) -> None:
        self.pulls: list[int] = []

    @property
    def num_open(self) -> int:
        return sum(self.pulls)


class Lanes(RuleBasedStateMachine):
    """Two lanes that share a window and one that is always open, against a broker that may lose statuses."""

    @initialize(max_rows=st.integers(1, 200))
    def start(self, max_rows: int) -> None:
        self.now_s = 0.0
        self.window = RowWindow(max_rows)
        self.books = [CreditBook(self.window), CreditBook(self.window), CreditBook(self.window, is_always_open=True)]
        self.brokers = [Broker() for _ in self.books]
        self.hands: list[list[int]] = [[] for _ in self.books]

    @rule()
    def refill(self) -> None:
        for book, broker in zip(self.books, self.brokers, strict=True):
            asked = book.ask(self.now_s)
            assert asked >= 0
            held = self.window.rows_always_open if book.is_always_open else self.window.rows_in_hand
            assert book.num_open >= 1 or held >= self.window.max_rows, "a lane with room never starves"
            if asked:
                broker.pulls.append(asked)

    @precondition(lambda self: any(b.num_open for b in self.brokers))
    @rule(pick=st.integers(0, 2), rows=st.integers(0, 40))
    def arrive(self, pick: int, rows: int) -> None:
        broker = self.brokers[pick]
        if not broker.num_open:
            return
        broker.pulls[0] -= 1
        broker.pulls = [p for p in broker.pulls if p]
        self.books[pick].arrived()
        self.books[pick].took(rows)
        self.hands[pick].append(rows)

    @rule(pick=st.integers(0, 2))
    def finish(self, pick: int) -> None:
        if self.hands[pick]:
            self.books[pick].finished(self.hands[pick].pop(0))

    @rule(pick=st.integers(0, 2), is_told=st.booleans())
    def pull_ends(self, pick: int, is_told: bool) -> None:
        broker = self.brokers[pick]
        if broker.pulls:
            ended = broker.pulls.pop(0)
            if is_told:
                self.books[pick].returned(ended)

    @rule(seconds=st.floats(0.1, 1.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        for book in self.books:
            book.tick(self.now_s)

    @rule(pick=st.integers(0, 2))
    def consumer_goes(self, pick: int) -> None:
        self.brokers[pick].pulls.clear()
        self.books[pick].forget()

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "window"):
            return
        assert self.window.rows_in_hand == sum(map(sum, self.hands))
        assert self.window.rows_always_open == sum(self.hands[2])
        for book in self.books:
            assert book.num_open >= 0

    def teardown(self) -> None:
        if not hasattr(self, "window"):
            return
        for broker in self.brokers:
            broker.pulls.clear()
        for book in self.books:
            book.tick(self.now_s + LAPSE_S)
            assert book.num_open == 0, "credits whose pulls ended unheard are not counted for ever"


TestLanes = Lanes.TestCase


@given(max_rows=st.integers(2, 128), rows=st.integers(1, 64), messages=st.integers(1, 400))
@settings(deadline=None)
def test_a_steady_stream_of_equal_messages_overshoots_by_less_than_one_message(
    max_rows: int, rows: int, messages: int
) -> None:
    rows = min(rows, max(1, max_rows // 2))
    window = RowWindow(max_rows)
    book = CreditBook(window)
    held: list[int] = []
    for _ in range(messages):
        book.ask(0.0)
        if book.num_open == 0:
            assert window.rows_in_hand >= max_rows
            book.finished(held.pop(0))
            book.ask(0.0)
        while book.num_open:
            book.arrived()
            book.took(rows)
            held.append(rows)
            assert window.rows_in_hand < max_rows + rows


@given(max_rows=st.integers(4, 128), rows=st.integers(1, 64), order=st.lists(st.integers(0, 2), max_size=300))
@settings(deadline=None)
def test_lanes_of_one_window_overshoot_by_little_more_than_one_message_each(
    max_rows: int, rows: int, order: list[int]
) -> None:
    rows = min(rows, max_rows // 2)
    window = RowWindow(max_rows)
    books = [CreditBook(window) for _ in range(3)]
    held: list[CreditBook] = []
    for pick in order:
        for book in books:
            book.ask(0.0)
        book = books[pick]
        if book.num_open:
            book.arrived()
            book.took(rows)
            held.append(book)
        elif held:
            held.pop(0).finished(rows)
        expected = window.rows_in_hand + rows * sum(b.num_open for b in books)
        assert expected <= max_rows + (len(books) + 1) * rows, (
            "rounding, and one message for each lane that would starve"
        )


@given(max_rows=st.integers(1, 1000))
def test_an_idle_lane_asks_for_two_messages_at_most(max_rows: int) -> None:
    window = RowWindow(max_rows)
    book = CreditBook(window)
    assert 1 <= book.ask(0.0) <= RAMP_START
    book.tick(10.0)
    assert 1 <= book.ask(10.0) <= RAMP_START


def test_busy_lanes_ramp_up_to_what_the_window_holds() -> None:
    window = RowWindow(64)
    book = CreditBook(window)
    for _ in range(300):
        book.ask(0.0)
        while book.num_open:
            book.arrived()
            book.took(1)
            book.finished(1)
    assert book.ask(0.0) == math.ceil(64 / book.rows_per_message)
    assert book.rows_per_message < 1.1


def test_the_top_up_waits_until_half_is_used() -> None:
    window = RowWindow(8)
    book = CreditBook(window)
    book.rows_per_message = 1.0
    for _ in range(6):
        book.ask(0.0)
        while book.num_open:
            book.arrived()
    assert book.ask(0.0) == 8
    for _ in range(3):
        book.arrived()
        assert book.ask(0.0) == 0
    book.arrived()
    assert book.ask(0.0) == 4
