"""Answers kept for later stay within their bounds and with their owners, whatever is done in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import NotFound, Unavailable
from gateway.http.later import GONE, GONE_S, RUNNING, KeptAnswer, Later

KEEP_S = 10.0
TENANTS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "finish", "remove", "find", "wait"]),
        st.sampled_from(TENANTS),
        st.integers(0, 40),
    ),
    max_size=80,
)


def answer(num_bytes: int, status: int = 200) -> KeptAnswer:
    return KeptAnswer(status, {}, bytes(num_bytes))


@given(STEPS, st.integers(1, 6), st.integers(1, 60))
def test_bounds_and_owners_hold_in_any_order(
    steps: list[tuple[str, str, int]], max_requests: int, max_bytes: int
) -> None:
    later, now_s = Later(max_requests, max_bytes, KEEP_S), 0.0
    ids: list[tuple[str, str]] = []
    running: set[str] = set()
    for step, tenant, number in steps:
        owner, request_id = ids[number % len(ids)] if ids else (tenant, "nothing")
        if step == "open":
            try:
                ids.append((tenant, later.open(tenant, now_s)))
                running.add(ids[-1][1])
            except Unavailable:
                assert len(running) == max_requests
        elif step == "finish":
            later.finish(owner, request_id, answer(number), now_s)
            running.discard(request_id)
        elif step == "remove":
            later.remove(owner, request_id, now_s)
            running.discard(request_id)
        elif step == "wait":
            now_s += number
        check_owners(later, ids, running, now_s)
        assert len(running) <= later.num_entries <= max_requests
        assert 0 <= later.num_bytes <= max_bytes


def check_owners(later: Later, ids: list[tuple[str, str]], running: set[str], now_s: float) -> None:
    for owner, request_id in ids:
        for asker in set(TENANTS) - {owner}:
            with pytest.raises(NotFound):
                later.find(asker, request_id, now_s)
        if request_id in running:
            assert later.find(owner, request_id, now_s) is RUNNING


def test_an_answer_is_kept_for_its_time_then_gone_then_forgotten() -> None:
    later = Later(10, 100, KEEP_S)
    request_id = later.open("a", 0.0)
    assert later.find("a", request_id, 1000.0) is RUNNING
    kept = answer(3, 500)
    later.finish("a", request_id, kept, 1000.0)
    assert later.find("a", request_id, 1000.0 + KEEP_S - 0.1) is kept
    assert later.find("a", request_id, 1000.0 + KEEP_S) is GONE
    assert later.num_bytes == later.num_entries == 0
    with pytest.raises(NotFound):
        later.find("a", request_id, 1000.0 + KEEP_S + GONE_S)


def test_who_holds_most_makes_room_for_others() -> None:
    later = Later(100, 10, KEEP_S)
    mine = later.open("small", 0.0)
    later.finish("small", mine, answer(2), 0.0)
    big = [later.open("big", 0.0) for _ in range(4)]
    for request_id in big:
        later.finish("big", request_id, answer(4), 1.0)
    assert later.find("small", mine, 1.0).status == 200  # type: ignore[union-attr]
    assert [later.find("big", i, 1.0) is GONE for i in big] == [True, True, False, False]


def test_running_requests_never_make_room_and_one_more_is_refused() -> None:
    later = Later(2, 100, KEEP_S)
    first, second = later.open("a", 0.0), later.open("a", 0.0)
    with pytest.raises(Unavailable, match="2 requests"):
        later.open("b", 0.0)
    later.finish("a", first, answer(1), 0.0)
    later.open("b", 0.0)
    assert later.find("a", first, 0.0) is GONE
    assert later.find("a", second, 0.0) is RUNNING


def test_an_answer_to_what_was_removed_is_not_kept() -> None:
    later = Later(2, 100, KEEP_S)
    request_id = later.open("a", 0.0)
    later.remove("a", request_id, 0.0)
    later.finish("a", request_id, answer(5), 0.0)
    assert later.find("a", request_id, 0.0) is GONE
    assert later.num_bytes == 0
