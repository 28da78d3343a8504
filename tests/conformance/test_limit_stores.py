"""Both stores of counts keep one and the same text: in process, and a real Valkey with limits.lua."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from gateway.limits.local import LocalStore
from gateway.limits.redis_store import RedisStore
from gateway.limits.store import Admit, Demand, Operation, Renew, Settle, Store, StoreAway, StoreUnusable
from gateway.limits.verdict import NEVER, UNKNOWN, Decision, Limit, Scope, Unit
from tests.support.broker import free_port
from tests.support.valkey import Valkey, script_with_set_clock

S = 1_000_000
START_US = 1_700_000_000 * S


def limit(unit: Unit, capacity: float, rate_per_s: float = 0.0, scope: Scope = "tenant") -> Limit:
    key = f"t:{scope}:{unit}"
    return Limit(scope, "acme", unit, capacity, "second", capacity, rate_per_s / S, "limits.yaml:1", key)


QPS = limit("qps", 2, 2)
TOKENS = limit("tokens", 100, 1)
ONE = limit("concurrency", 1)


class Kit:
    """A store and its clock."""

    def __init__(self, store: Store, tell: Callable[[int], object]) -> None:
        self.store = store
        self._tell = tell
        self.now_us = START_US

    async def at(self, seconds: float) -> None:
        self.now_us = START_US + round(seconds * S)
        told = self._tell(self.now_us)
        if asyncio.iscoroutine(told):
            await told

    async def admit(self, lease: str, *demands: tuple[Limit, int], is_dry: bool = False) -> Decision:
        (found,) = await self.store.call([Admit(lease, tuple(Demand(*d) for d in demands), is_dry)])
        return found

    async def settle(self, lease: str, *demands: tuple[Limit, int, int]) -> None:
        taken = tuple(Demand(of, amount) for of, amount, _ in demands)
        assert not await self.store.call([Settle(lease, taken, tuple(used for _, _, used in demands))])


@pytest.fixture
async def valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    await server.start()
    yield server
    server.kill()


def local_kit() -> Kit:
    clock = [START_US]
    return Kit(LocalStore(15 * S, lambda: clock[0]), lambda now_us: clock.__setitem__(0, now_us))


async def valkey_kit(valkey: Valkey) -> Kit:
    store = RedisStore(valkey.settings, script=script_with_set_clock())
    await store.start()
    await store._client.flushdb()

    def tell(now_us: int) -> object:
        return store._client.mset({"test:clock_s": now_us // S, "test:clock_us": now_us % S})

    kit = Kit(store, tell)
    await kit.at(0)
    return kit


@pytest.fixture(params=["local", "valkey"])
async def kit(request: pytest.FixtureRequest, valkey: Valkey) -> AsyncIterator[Kit]:
    found = local_kit() if request.param == "local" else await valkey_kit(valkey)
    yield found
    await found.store.close()


async def test_a_rate_lets_its_burst_in_and_then_one_at_a_time(kit: Kit) -> None:
    assert [(await kit.admit(str(n), (QPS, 1))).is_admitted for n in range(3)] == [True, True, False]
    await kit.at(0.5)
    assert (await kit.admit("a", (QPS, 1))).is_admitted
    assert not (await kit.admit("b", (QPS, 1))).is_admitted


async def test_the_wait_that_is_told_is_true_to_two_microseconds(kit: Kit) -> None:
    await kit.admit("a", (TOKENS, 60))
    wait_us = (await kit.admit("b", (TOKENS, 50))).levels[0].wait_us
    await kit.at((wait_us - 2) / S)
    assert not (await kit.admit("b", (TOKENS, 50))).is_admitted
    await kit.at(wait_us / S)
    assert (await kit.admit("b", (TOKENS, 50))).is_admitted


async def test_a_request_takes_all_or_nothing(kit: Kit) -> None:
    await kit.admit("a", (ONE, 1))
    refused = await kit.admit("b", (QPS, 1), (ONE, 1), (TOKENS, 100))
    assert [level.wait_us for level in refused.levels] == [0, UNKNOWN, 0]
    assert (await kit.admit("c", (QPS, 2), (TOKENS, 100))).is_admitted


async def test_what_can_never_fit_says_so(kit: Kit) -> None:
    assert (await kit.admit("a", (TOKENS, 101))).levels[0].wait_us == NEVER


async def test_a_look_consumes_nothing(kit: Kit) -> None:
    for _ in range(5):
        assert (await kit.admit("a", (QPS, 2), (ONE, 1), (TOKENS, 100), is_dry=True)).is_admitted
    assert (await kit.admit("a", (QPS, 2), (ONE, 1), (TOKENS, 100))).is_admitted


async def test_tokens_are_settled_to_what_was_used(kit: Kit) -> None:
    await kit.admit("a", (TOKENS, 100))
    await kit.settle("a", (TOKENS, 100, 30))
    assert (await kit.admit("b", (TOKENS, 70))).is_admitted
    assert not (await kit.admit("c", (TOKENS, 1))).is_admitted


async def test_a_lease_nobody_renews_is_given_back_and_settling_it_later_gives_nothing_twice(kit: Kit) -> None:
    await kit.admit("a", (ONE, 1), (TOKENS, 100))
    await kit.at(14.9)
    assert not (await kit.admit("b", (ONE, 1))).is_admitted
    await kit.at(15)
    assert (await kit.admit("b", (ONE, 1), (TOKENS, 40))).is_admitted
    await kit.settle("a", (ONE, 1, 0), (TOKENS, 100, 60))
    assert not (await kit.admit("c", (ONE, 1))).is_admitted
    assert not (await kit.admit("c", (TOKENS, 1))).is_admitted


async def test_a_renewed_lease_stays_and_one_that_expired_is_taken_again(kit: Kit) -> None:
    taken = (Demand(ONE, 1),)
    await kit.admit("a", (ONE, 1))
    await kit.at(10)
    await kit.store.call([Renew("a", taken)])
    await kit.at(24.9)
    assert not (await kit.admit("b", (ONE, 1))).is_admitted
    await kit.at(40)
    await kit.store.call([Renew("a", taken)])
    assert not (await kit.admit("b", (ONE, 1))).is_admitted
    await kit.settle("a", (ONE, 1, 0))
    assert (await kit.admit("b", (ONE, 1))).is_admitted


async def test_a_clock_that_is_set_back_admits_nobody_early(kit: Kit) -> None:
    await kit.at(100)
    await kit.admit("a", (QPS, 2))
    await kit.at(0)
    assert not (await kit.admit("b", (QPS, 1))).is_admitted
    await kit.at(0.5)
    assert (await kit.admit("b", (QPS, 1))).is_admitted


def random_operation(rng: random.Random, number: int) -> Operation:
    demands = tuple(Demand(of, rng.randint(1, int(of.capacity) + 1)) for of in (QPS, TOKENS, ONE) if rng.random() < 0.6)
    lease = str(rng.randint(0, number))
    kind = rng.random()
    if kind < 0.6:
        return Admit(str(number), demands, is_dry=kind < 0.1)
    if kind < 0.9:
        return Settle(lease, demands, tuple(rng.randint(0, d.amount) for d in demands))
    return Renew(lease, demands)


async def test_both_stores_say_the_same_whatever_is_asked(valkey: Valkey) -> None:
    rng = random.Random(4)
    ours, theirs = local_kit(), await valkey_kit(valkey)
    seconds = 0.0
    for number in range(300):
        seconds += rng.choice((0, 0.001, 0.3, 7, -2))
        await ours.at(seconds)
        await theirs.at(seconds)
        calls: Sequence[Operation] = [random_operation(rng, number * 10 + n) for n in range(rng.randint(1, 4))]
        for mine, other in zip(await ours.store.call(calls), await theirs.store.call(calls), strict=True):
            assert mine.is_admitted == other.is_admitted
            for a, b in zip(mine.levels, other.levels, strict=True):
                assert a.used == pytest.approx(b.used, abs=1e-6)
                assert abs(a.wait_us - b.wait_us) <= 1
    await theirs.store.close()


async def test_several_gateways_admit_no_more_than_one_would(valkey: Valkey) -> None:
    stores = [RedisStore(valkey.settings) for _ in range(3)]
    wide = limit("concurrency", 50, scope="cluster")
    for store in stores:
        await store.start()
    asked = [stores[n % 3].call([Admit(f"race{n}", (Demand(wide, 1),))]) for n in range(200)]
    assert sum(d.is_admitted for (d,) in await asyncio.gather(*asked)) == 50
    for store in stores:
        await store.close()


async def test_every_key_of_the_store_ends_by_itself(valkey: Valkey) -> None:
    store = RedisStore(valkey.settings)
    await store.start()
    await store._client.flushdb()
    await store.call([Admit("a", (Demand(QPS, 1), Demand(TOKENS, 5), Demand(ONE, 1)))])
    keys = await store._client.keys("*")
    assert len(keys) == 5
    assert all([0 < await store._client.pttl(key) < 120_000 for key in keys])
    await store.close()


async def test_a_node_of_a_cluster_is_refused_with_the_reason(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Valkey(tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    await server.start()
    store = RedisStore(server.settings)
    try:
        with pytest.raises(StoreUnusable, match="Redis Cluster"):
            await store.start()
    finally:
        await store.close()
        server.kill()


async def test_a_store_that_restarted_is_asked_again_and_one_that_is_gone_is_away(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = Valkey(tmp_path_factory.mktemp("restarted"))
    await server.start()
    store = RedisStore(server.settings)
    try:
        await store.start()
        asked = [Admit("a", (Demand(ONE, 1),))]
        assert (await store.call(asked))[0].is_admitted
        server.kill()
        with pytest.raises(StoreAway):
            await store.call(asked)
        await server.start()
        assert (await store.call(asked))[0].is_admitted
    finally:
        await store.close()
        server.kill()
