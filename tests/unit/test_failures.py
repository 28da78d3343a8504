"""What a failed request leaves in the log, and how loud it is."""

import pytest
from structlog.testing import capture_logs

from contract.errors import HeadraceError, all_errors
from gateway.failures import log_failure

LOUD = {
    "model-failed",
    "instance-died",
    "poison-request",
    "execution-timeout",
    "internal-error",
}
QUIET = {
    "invalid-input",
    "unauthenticated",
    "forbidden",
    "not-found",
    "too-large",
    "limit-reached",
    "bad-envelope",
    "text-too-long",
    "idempotency-mismatch",
}


def logged(error: HeadraceError, *, caller_id: str = "", traceparent: str = "") -> dict[str, object]:
    with capture_logs() as events:
        log_failure(
            error,
            door="http",
            request_id="r-1",
            caller_id=caller_id,
            traceparent=traceparent,
            tenant="acme",
            service="",
            model="m",
            status=error.http_status,
            seconds=0.25,
        )
    (event,) = events
    return dict(event)


@pytest.mark.parametrize("error", all_errors(), ids=lambda cls: cls.code)
def test_the_level_says_whose_fault_it_is(error: type[HeadraceError]) -> None:
    expected = "warning" if error.code in LOUD else "debug" if error.code in QUIET else "info"
    assert logged(error("why"))["log_level"] == expected


def test_the_line_has_the_ids_and_no_words_of_the_error() -> None:
    event = logged(all_errors()[0]("input quotes a payload"), caller_id="mine", traceparent="00-1-2-01")
    assert event == {
        "event": "request-failed",
        "log_level": "debug",
        "door": "http",
        "request_id": "r-1",
        "caller_id": "mine",
        "traceparent": "00-1-2-01",
        "tenant": "acme",
        "model": "m",
        "code": "invalid-input",
        "status": 400,
        "seconds": 0.25,
    }


def test_ids_nobody_sent_are_left_out() -> None:
    assert not {"caller_id", "traceparent", "service"} & logged(all_errors()[0]("why")).keys()
