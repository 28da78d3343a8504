"""Deadlines: the header's forms, and the two clocks."""

import pytest

from contract.deadline import MAX_TIMEOUT_MS, BrokerClock, parse_timeout_ms
from contract.errors import InvalidInput


@pytest.mark.parametrize(("value", "milliseconds"), [("1", 1), ("250", 250), (" 40 ", 40), ("600000", 600_000)])
def test_a_whole_number_of_milliseconds_is_taken(value: str, milliseconds: int) -> None:
    assert parse_timeout_ms(value) == milliseconds


@pytest.mark.parametrize("value", ["", "0", "-5", "1.5", "1e3", "abc", "٣", "1 000", "9" * 40])
def test_anything_else_is_refused_and_never_made_urgent(value: str) -> None:
    with pytest.raises(InvalidInput, match="Headrace-Timeout-Ms"):
        parse_timeout_ms(value)


def test_no_header_gives_the_default_and_a_long_one_is_cut() -> None:
    assert parse_timeout_ms(None, default_ms=1234) == 1234
    assert parse_timeout_ms("99999999", max_ms=5000) == 5000
    assert parse_timeout_ms("99999999") == MAX_TIMEOUT_MS


def test_a_deadline_survives_the_way_through_another_clock() -> None:
    gateway, worker = BrokerClock(offset_s=1_700_000_000.0), BrokerClock(offset_s=1_700_000_500.25)
    wire = gateway.to_wire_ms(10.5)
    assert gateway.from_wire_ms(wire) == pytest.approx(10.5, abs=0.002)
    assert worker.from_wire_ms(wire) == pytest.approx(10.5 - 500.25, abs=0.002)


def test_a_small_drift_is_smoothed_and_a_jump_is_believed_at_once() -> None:
    clock = BrokerClock(offset_s=1000.0)
    clock.observe(1000.1, 0.0)
    assert clock.offset_s == pytest.approx(1000.01)
    clock.observe(5000.0, 0.0)
    assert clock.offset_s == 5000.0
