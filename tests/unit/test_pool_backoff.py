"""Pauses between restarts, and how an exit is told."""

from workers.backoff import Backoff
from workers.pool import describe_exit


def test_pauses_double_up_to_thirty_seconds() -> None:
    backoff = Backoff(0.5)
    assert [backoff.pause_s(1.0) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_what_lived_long_starts_from_the_shortest_pause_again() -> None:
    backoff = Backoff(0.5)
    for _ in range(5):
        backoff.pause_s(1.0)
    assert backoff.pause_s(30.0) == 0.5
    assert backoff.pause_s(1.0) == 1.0


def test_a_long_first_pause_is_cut_to_the_longest() -> None:
    assert Backoff(60.0).pause_s() == 30.0


def test_an_exit_is_told_by_signal_name_or_code() -> None:
    assert describe_exit(3) == {"exit_code": 3}
    assert describe_exit(-9) == {"signal": "SIGKILL"}
    assert describe_exit(-250) == {"signal": "250"}
