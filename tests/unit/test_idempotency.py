"""gateway/idempotency/walk.py: what a request with a key may do."""

from __future__ import annotations

import pytest

from contract.errors import InvalidInput, all_errors
from gateway.idempotency import walk
from gateway.idempotency.walk import Claim, End, Replay, Step, check_key, is_kept, judge

MINE, OTHER = b"mine", b"other"
CLAIM = Claim(MINE, 1_000)
ANSWER = End(MINE, 200, {}, b"x")
FREE = End(MINE, 0, {}, b"")


@pytest.mark.parametrize(
    ("claim", "end", "who", "now", "wanted"),
    [
        (None, None, MINE, 0, Step.TAKE),
        (CLAIM, None, MINE, 1_000, Step.WAIT),
        (CLAIM, None, OTHER, 1_000, Step.MISMATCH),
        (CLAIM, None, MINE, 1_001, Step.NEXT),
        (CLAIM, None, OTHER, 1_001, Step.NEXT),
        (CLAIM, FREE, OTHER, 0, Step.NEXT),
        (CLAIM, ANSWER, MINE, 9_999, Replay(ANSWER)),
        (None, ANSWER, MINE, 9_999, Replay(ANSWER)),
        (CLAIM, ANSWER, OTHER, 9_999, Step.MISMATCH),
    ],
)
def test_an_attempt_is_taken_only_where_none_has_an_answer_or_may_run(
    claim: Claim | None, end: End | None, who: bytes, now: int, wanted: Step | Replay
) -> None:
    assert judge(claim, end, who, now) == wanted


def test_codes_that_decide_are_codes_that_exist_and_no_code_does_both() -> None:
    codes = {error.code for error in all_errors()} | {""}
    assert codes >= walk.RAN
    assert codes >= walk.NEVER_RAN
    assert not walk.RAN & walk.NEVER_RAN


def test_what_may_still_run_keeps_its_lease() -> None:
    for code in ("deadline-exceeded", "cancelled", "broker-away", "internal-error", "a-newer-one"):
        assert is_kept(code) is None
    assert is_kept("") is True
    assert is_kept("queue-full") is False


@pytest.mark.parametrize("values", [[""], ["a", "b"], ["x" * 256], ["é"], ["a\tb"]])
def test_a_key_that_is_none_is_refused(values: list[str]) -> None:
    with pytest.raises(InvalidInput, match="Idempotency-Key"):
        check_key(values)


def test_no_two_tenants_or_bodies_share_a_digest_by_where_their_parts_end() -> None:
    assert walk.token("ab", "c") != walk.token("a", "bc")
    assert walk.fingerprint(b"ab", b"c") != walk.fingerprint(b"a", b"bc")
    assert walk.token("a.*", ">").isalnum()
