"""No interleaving over-admits, no lease leaks, whatever the order of admissions, settlings, deaths and times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.local import LocalStore
from gateway.limits.store import Admit, Demand, Settle
from gateway.limits.verdict import HELD, UNKNOWN, Limit, Scope, Unit

S = 1_000_000
LEASE_S = 15


def limit(unit: Unit, capacity: float, rate_per_s: float = 0.0, scope: Scope = "tenant") -> Limit:
    return Limit(scope, "acme", unit, capacity, "", capacity, rate_per_s / S, "limits.yaml:1", f"{scope}:{unit}")


QPS, CLUSTER = limit("qps", 5, 2), limit("qps", 7, 3, "cluster")
TOKENS, HELD_ROWS, SLOTS = limit("tokens", 50, 5), limit("rows", 20), limit("concurrency", 3)
LIMITS = (QPS, CLUSTER, TOKENS, HELD_ROWS, SLOTS)

ADMISSIONS = st.tuples(
    st.just("admit"), st.dictionaries(st.sampled_from(LIMITS), st.integers(1, 60), min_size=1, max_size=5)
)
STEPS = st.lists(
    st.one_of(
        ADMISSIONS,
        st.tuples(st.just("settle"), st.integers(0, 40)),
        st.tuples(st.just("pass"), st.integers(0, 20 * S)),
    ),
    max_size=60,
)


class Account:
    """What a store let in, added up beside it."""

    def __init__(self) -> None:
        self.now_us = S
        self.store = LocalStore(LEASE_S * S, lambda: self.now_us)
        self.open: dict[str, tuple[tuple[Demand, ...], int]] = {}
        self.charged = dict.fromkeys(LIMITS, 0)

    def admit(self, lease: str, amounts: dict[Limit, int]) -> None:
        demands = tuple(Demand(of, amount) for of, amount in amounts.items())
        decision = self.store.do(Admit(lease, demands))
        assert decision is not None
        if decision.is_admitted:
            self.open[lease] = (demands, self.now_us + LEASE_S * S)
            for d in demands:
                self.charged[d.limit] += d.amount

    def settle(self, number: int) -> None:
        if self.open:
            lease = list(self.open)[number % len(self.open)]
            demands, _ = self.open.pop(lease)
            self.store.do(Settle(lease, demands, tuple(0 if d.limit.kind == HELD else d.amount for d in demands)))

    def held(self, of: Limit) -> int:
        live = [demands for demands, until_us in self.open.values() if until_us > self.now_us]
        return sum(d.amount for demands in live for d in demands if d.limit is of)


@given(STEPS)
def test_no_interleaving_admits_more_than_capacity_and_rate_allow(steps: list[tuple[str, object]]) -> None:
    account = Account()
    for number, (what, value) in enumerate(steps):
        if isinstance(value, dict):
            account.admit(str(number), value)
        elif what == "settle":
            account.settle(int(str(value)))
        else:
            account.now_us += int(str(value))
        assert all(account.held(of) <= of.capacity for of in (HELD_ROWS, SLOTS))
        for of in (QPS, CLUSTER):
            assert account.charged[of] <= of.capacity + of.rate_per_us * (account.now_us - S) + 1e-5


@given(STEPS)
def test_when_every_lease_ended_by_settling_or_by_death_nothing_is_held(steps: list[tuple[str, object]]) -> None:
    now = [S]
    store = LocalStore(LEASE_S * S, lambda: now[0])
    for number, (what, value) in enumerate(steps):
        if isinstance(value, dict):
            store.do(Admit(str(number), tuple(Demand(of, amount) for of, amount in value.items())))
        elif what == "pass":
            now[0] += int(str(value))
    now[0] += LEASE_S * S
    for of in (HELD_ROWS, SLOTS):
        decision = store.do(Admit("whole", (Demand(of, int(of.capacity)),), is_dry=True))
        assert decision is not None
        assert decision.is_admitted


@given(ADMISSIONS, st.lists(ADMISSIONS, max_size=8))
def test_after_the_longest_wait_that_was_told_the_request_fits(
    asked: tuple[str, dict[Limit, int]], before: list[tuple[str, dict[Limit, int]]]
) -> None:
    now = [S]
    store = LocalStore(LEASE_S * S, lambda: now[0])
    for number, (_, amounts) in enumerate(before):
        store.do(Admit(str(number), tuple(Demand(of, amount) for of, amount in amounts.items())))
    demands = tuple(Demand(of, min(amount, int(of.capacity))) for of, amount in asked[1].items())
    refused = store.do(Admit("it", demands))
    assert refused is not None
    waits = [level.wait_us for level in refused.levels]
    if UNKNOWN in waits or refused.is_admitted:
        return
    now[0] += max(waits)
    decision = store.do(Admit("it", demands))
    assert decision is not None
    assert decision.is_admitted


def test_counts_of_names_that_are_idle_again_are_forgotten() -> None:
    now = [S]
    store = LocalStore(LEASE_S * S, lambda: now[0])
    for n in range(20_000):
        now[0] += 1000
        name = Limit("tenant", str(n), "qps", 10, "second", 10, 10 / S, "", f"k{n}")
        store.do(Admit(str(n), (Demand(name, 1),)))
    assert len(store) < 10_000
