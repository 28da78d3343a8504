"""Small parts of the transport: subjects that can't smuggle protocol, headers, ack subjects, the broker's clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.deadline import BrokerClock
from transport.base import BrokerTimeout, Stored, StreamFull, StreamGone, TransportError
from transport.clock import observe_answer, observe_stored
from transport.hand import ack_fields
from transport.link import encode_subject, header_field, status_of
from transport.memory_streams import matches, overlaps
from transport.mux import outcome_of


@given(st.text(max_size=30))
def test_an_encoded_subject_holds_no_white_space_or_control_character(subject: str) -> None:
    try:
        encoded = encode_subject(subject)
    except ValueError:
        return
    assert encoded
    assert not any(c <= 0x20 or c == 0x7F for c in encoded)


def test_status_and_fields_of_headers() -> None:
    header = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 4\r\nNats-Pending-Bytes: 7\r\n\r\n"
    assert status_of(header) == b"408"
    assert header_field(header, b"Nats-Pending-Messages") == b"4"
    assert header_field(header, b"Nats-Pending-Bytes") == b"7"
    assert header_field(header, b"Pending") == b""
    assert status_of(b"NATS/1.0\r\nA: 503\r\n\r\n") == b""
    assert status_of(b"") == b""


@pytest.mark.parametrize(
    "subject",
    [b"$JS.ACK.S.c.3.77.9.1796076383243349331.0", b"$JS.ACK.hub.ACC.S.c.3.77.9.1796076383243349331.0.tok"],
)
def test_an_ack_subject_of_either_form_is_read(subject: bytes) -> None:
    assert ack_fields(subject)[:4] == [b"3", b"77", b"9", b"1796076383243349331"]


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b'{"stream":"S","seq":9}', Stored),
        (b'{"stream":"S","seq":9,"duplicate":true,"domain":"x"}', Stored),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}',
            StreamFull,
        ),
        (b'{"error":{"code":503,"err_code":10047,"description":"insufficient storage"}}', StreamFull),
        (b'{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}', StreamFull),
        (b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}', StreamGone),
        (b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}', TransportError),
        (b"what?", TransportError),
    ],
)
def test_a_publish_ack_is_understood(payload: bytes, kind: type) -> None:
    outcome = outcome_of(payload, b"")
    assert type(outcome) is kind
    assert type(outcome_of(b"", b"NATS/1.0 503\r\n\r\n")) is StreamGone
    assert type(outcome) is not BrokerTimeout


def test_the_clock_follows_answers_with_a_short_round_trip_only() -> None:
    clock = BrokerClock(1000.0)
    answer = b'{"server":{"time":"1970-01-01T00:20:00.25Z"}}'
    observe_answer(clock, answer, sent_s=10.0, got_s=10.5)
    assert clock.offset_s == 1000.0
    observe_answer(clock, b"{}", sent_s=10.0, got_s=10.001)
    assert clock.offset_s == 1000.0
    observe_answer(clock, answer, sent_s=10.0, got_s=10.01)
    assert clock.offset_s == pytest.approx(1200.25 - 10.005)


@given(stored_s=st.floats(0, 1e6), now_s=st.floats(0, 1e6))
def test_no_message_was_stored_in_the_future(stored_s: float, now_s: float) -> None:
    clock = BrokerClock(0.0)
    observe_stored(clock, stored_s, now_s)
    assert stored_s <= now_s + clock.offset_s + 1e-6
    assert clock.offset_s == 0.0 or stored_s > now_s


subject_tokens = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)


@given(
    pattern=subject_tokens, tail=st.booleans(), subject=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5)
)
def test_subject_matching_is_token_by_token(pattern: list[str], tail: bool, subject: list[str]) -> None:
    text = ".".join([*pattern, ">"] if tail else pattern)
    heads_fit = all(p in ("*", s) for p, s in zip(pattern, subject, strict=False))
    fits = heads_fit and (len(subject) > len(pattern) if tail else len(subject) == len(pattern))
    assert matches(text, ".".join(subject)) == fits
    if fits:
        assert overlaps(text, ".".join(subject))
