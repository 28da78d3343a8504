"""Replies that a cut connection may have swallowed."""

import pytest

from workers.unconfirmed import Unconfirmed

A, B, C = ("inbox", b"a"), ("inbox", b"bb"), ("inbox", b"ccc")


def test_a_heartbeat_that_comes_back_confirms_what_was_sent_before_it() -> None:
    sent = Unconfirmed()
    sent.put(A)
    sent.beat()
    sent.put(B)
    sent.beat()
    sent.put(C)
    sent.confirm()
    assert (len(sent), sent.num_bytes) == (2, 5)
    sent.confirm()
    assert sent.take() == [C]


def test_what_is_not_confirmed_is_taken_once_in_order() -> None:
    sent = Unconfirmed()
    for reply in (A, B):
        sent.put(reply)
        sent.beat()
    assert sent.take() == [A, B]
    assert sent.take() == []
    assert (len(sent), sent.num_bytes) == (0, 0)


def test_a_heartbeat_nobody_waits_for_confirms_nothing() -> None:
    sent = Unconfirmed()
    sent.put(A)
    sent.confirm()
    assert sent.take() == [A]


def test_it_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.unconfirmed.MAX_BYTES", 4)
    sent = Unconfirmed()
    for reply in (A, B, C):
        sent.put(reply)
    assert sent.take() == [C]
    monkeypatch.setattr("workers.unconfirmed.MAX_REPLIES", 1)
    for reply in (A, B):
        sent.put(reply)
    assert sent.take() == [B]
