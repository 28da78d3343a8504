"""The error tree: codes, statuses, and the way over the wire."""

import pytest

from contract.errors import HeadraceError, InternalError, all_errors, from_wire

GRPC_STATUSES = {
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "CANCELLED",
    "UNIMPLEMENTED",
}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in all_errors()]
    assert len(codes) == len(set(codes))
    assert all(c == c.lower() and " " not in c for c in codes)


@pytest.mark.parametrize("cls", all_errors(), ids=lambda c: c.code)
def test_an_error_comes_back_over_the_wire_as_what_it_was(cls: type[HeadraceError]) -> None:
    again = from_wire(cls.code, "input 'x' has 3 rows, at most 2")
    assert type(again) is cls
    assert again.message == str(again) == "input 'x' has 3 rows, at most 2"


@pytest.mark.parametrize("cls", all_errors(), ids=lambda c: c.code)
def test_statuses_are_ones_that_clients_know(cls: type[HeadraceError]) -> None:
    assert 400 <= cls.http_status < 600
    assert cls.grpc_status in GRPC_STATUSES
    assert cls.is_retryable == (cls.http_status in {429, 503})


def test_our_own_state_always_says_when_to_come_back() -> None:
    assert all(cls("busy").retry_after_s for cls in all_errors() if cls.http_status == 503)


def test_a_code_from_a_newer_peer_is_an_internal_error_that_shows_it() -> None:
    error = from_wire("quantum-decoherence", "lost coherence")
    assert type(error) is InternalError
    assert "quantum-decoherence" in error.message
    assert "lost coherence" in error.message
