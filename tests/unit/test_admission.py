import pytest

from contract.errors import DeadlineExceeded, Draining, Forbidden, Unavailable
from contract.principal import DEFAULT_PRINCIPAL, Principal
from gateway.admission import Admission, Ticket


def admit(admission: Admission, size: int = 10, principal: Principal = DEFAULT_PRINCIPAL, deadline_s: float = 9.0):
    return admission.admit(principal, size, deadline_s, 1.0)


def test_what_a_ticket_took_comes_back_on_release() -> None:
    admission = Admission(2, 100)
    tickets = [admit(admission, 60), admit(admission, 40)]
    assert all(isinstance(t, Ticket) for t in tickets)
    assert (admission.num_in_flight, admission.held_bytes) == (2, 100)
    for ticket in tickets:
        ticket.release()
    assert (admission.num_in_flight, admission.held_bytes) == (0, 0)


def test_a_second_release_is_an_error_of_ours() -> None:
    ticket = admit(Admission(1, 100))
    ticket.release()
    with pytest.raises(AssertionError):
        ticket.release()


def test_the_bounds_of_the_process_refuse_with_503() -> None:
    admission = Admission(2, 100)
    admit(admission, 60)
    refused = admit(admission, 41)
    assert type(refused) is Unavailable
    assert "41" in refused.message
    assert "60" in refused.message
    admit(admission, 40)
    assert "at most 2" in admit(admission, 0).message
    assert admission.num_refused == {"unavailable": 2}


def test_a_key_without_the_role_is_forbidden() -> None:
    refused = admit(Admission(1, 100), principal=Principal("acme", "k1", frozenset({"batch"})))
    assert type(refused) is Forbidden
    assert "k1" in refused.message


def test_a_deadline_that_passed_is_refused() -> None:
    assert type(admit(Admission(1, 100), deadline_s=1.0)) is DeadlineExceeded


def test_closed_means_the_given_reason_for_everybody() -> None:
    admission = Admission(1, 100)
    admission.close(Draining, "bye")
    assert type(admit(admission)) is Draining
    with pytest.raises(Draining, match="bye"):
        admission.check_open()
    admission.open()
    admission.check_open()
    assert isinstance(admit(admission), Ticket)
