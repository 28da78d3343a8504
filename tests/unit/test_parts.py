from headrace.parts import Deaths, how_it_ended


def test_pauses_double_and_the_fifth_death_within_a_minute_is_the_last() -> None:
    deaths = Deaths()
    assert [deaths.pause_s(now_s, 1.0) for now_s in (0.0, 10.0, 20.0, 30.0, 60.0)] == [0.5, 1, 2, 4, None]


def test_deaths_that_lie_apart_go_on_for_ever_with_at_most_thirty_seconds_between() -> None:
    deaths = Deaths()
    pauses = [deaths.pause_s(16.0 * n, 1.0) for n in range(10)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_an_end_is_told_by_signal_or_code() -> None:
    assert how_it_ended(-9) == "died with signal 9"
    assert how_it_ended(1) == "ended with code 1"
