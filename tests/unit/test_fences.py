"""Cancels, dead gateways and started notes: pure rules."""

import pytest

from workers.fences import MAX_CANCELS, Fences, StartedNote, judge, read_note, write_note


def test_a_cancel_holds_until_its_deadline_and_is_forgotten_then() -> None:
    fences = Fences()
    fences.cancel("g", [1, 2], until_s=10.0)
    fences.sweep(9.9)
    assert fences.is_cancelled("g", 1)
    assert not fences.is_cancelled("other", 1)
    fences.sweep(10.0)
    assert not fences.is_cancelled("g", 1)
    assert fences.num_cancels == 0


def test_cancels_are_bounded_and_the_oldest_go_first() -> None:
    fences = Fences()
    fences.cancel("g", list(range(MAX_CANCELS + 5)), until_s=10.0)
    assert fences.num_cancels == MAX_CANCELS
    assert not fences.is_cancelled("g", 4)
    assert fences.is_cancelled("g", 5)


def hearing(*times_s: float) -> Fences:
    """Fences that heard gateway `g` at first, and their own worker at each of these times."""
    fences = Fences()
    fences.hear("g", times_s[0])
    for at_s in times_s:
        fences.hear_self(at_s)
    return fences


def test_a_gateway_is_dead_after_three_silent_seconds() -> None:
    fences = hearing(100, 101, 102, 103)
    assert fences.dead_since_s("g", 103.0) is None
    assert fences.dead_since_s("g", 103.1) == 100.0
    fences.hear("g", 103.2)
    assert fences.dead_since_s("g", 103.3) is None


def test_a_gateway_never_heard_is_not_dead() -> None:
    assert hearing(100, 101).dead_since_s("other", 101.0) is None


def test_time_in_which_we_could_not_hear_ourselves_counts_against_nobody() -> None:
    fences = hearing(100, 101)
    assert fences.dead_since_s("g", 200.0) is None
    for at_s in (200, 201, 202, 203):
        fences.hear_self(at_s)
        assert fences.dead_since_s("g", at_s) is None
    assert fences.dead_since_s("g", 203.1) == 200.0


def test_a_reconnect_pardons_everybody() -> None:
    fences = hearing(100, 101, 102, 103)
    fences.pardon(103.1)
    assert fences.dead_since_s("g", 103.2) is None


def test_a_dead_gateway_is_remembered_longer_than_its_requests_live() -> None:
    fences = hearing(*range(701))
    fences.sweep(700.0)
    assert fences.dead_since_s("g", 700.0) == 0.0
    fences.sweep(3_700.0)
    for at_s in range(701, 3_701):
        fences.hear_self(at_s)
    assert fences.dead_since_s("g", 3_700.0) is None


@pytest.mark.parametrize(
    ("note", "verdict"),
    [
        (StartedNote(), "run"),
        (StartedNote(1), "run"),
        (StartedNote(2), "poison"),
        (StartedNote(3), "poison"),
        (StartedNote(1, is_done=True), "answered"),
        (StartedNote(2, is_done=True), "answered"),
    ],
)
def test_a_note_says_whether_its_request_runs(note: StartedNote, verdict: str) -> None:
    assert judge(note) == verdict


def test_a_note_reads_back_and_rubbish_counts_as_never_started() -> None:
    assert read_note(write_note(StartedNote(2, is_done=True))) == StartedNote(2, is_done=True)
    assert read_note(None) == StartedNote()
    assert read_note(b"\xc1rubbish") == StartedNote()
