"""Usage of gateways over one broker, in process and over nats-server: written, read, grouped, never counted twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime

import pytest

from contract.errors import BrokerAway, InvalidInput
from gateway.http.server import HttpDoor
from gateway.http.usage import days_asked, groups_asked
from gateway.settings import GatewaySettings
from gateway.usage.account import Counts, day_of, grouped
from gateway.usage.book import UsageBook
from headrace.usage import UsageRefused, print_usage, read_usage
from tests.support.http_kit import EchoCore, RawClient, get, identify, numbers
from tests.support.transports import Transports
from tests.support.waiting import until

MINE = ("acme", "k1", "m")


class Counter:
    """What a core counted since it was last asked."""

    def __init__(self) -> None:
        self.counts: Counts = {}

    def take(self) -> Counts:
        counts, self.counts = self.counts, {}
        return counts


async def books(transports: Transports, num: int = 2) -> list[tuple[Counter, UsageBook]]:
    counters = [Counter() for _ in range(num)]
    return [(counter, UsageBook(await transports.make(), counter.take)) for counter in counters]


async def until_true(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await ask():  # noqa: ASYNC110 - what is asked is a write, not an event of ours
            await asyncio.sleep(0.05)  # the broker tells nobody that it is back with its streams


def today() -> str:
    return day_of(int(time.time() * 1000))


async def test_all_gateways_counts_of_a_day_are_summed_and_writing_again_adds_nothing(transports: Transports) -> None:
    (a, one), (b, two) = await books(transports)
    a.counts = {MINE: [1, 2, 30, 400]}
    b.counts = {MINE: [1, 1, 1, 1], ("other", "k", "m"): [5, 5, 5, 5]}
    for _ in range(3):
        assert await one.flush()
        assert await two.flush()
    a.counts = {MINE: [1, 0, 0, 0]}
    await one.close()
    for book in (one, two):
        assert await book.read(today(), "acme") == {MINE: [3, 3, 31, 401]}
        assert set(await book.read(today(), None)) == {MINE, ("other", "k", "m")}
    assert await two.read("2020-01-01", None) == {}


async def test_a_gateway_that_starts_again_leaves_what_its_last_life_wrote(transports: Transports) -> None:
    for _ in range(3):
        ((counter, book),) = await books(transports, 1)
        counter.counts = {MINE: [1, 1, 1, 1]}
        await book.flush()
    assert await book.read(today(), None) == {MINE: [3, 3, 3, 3]}


async def test_what_is_counted_while_the_broker_is_away_is_written_when_it_is_back(transports: Transports) -> None:
    ((counter, book),) = await books(transports, 1)
    counter.counts = {MINE: [1, 1, 1, 1]}
    assert await book.flush()
    transport = await transports.make()
    await transports.take_away()
    await until(lambda: not transport.is_connected)
    counter.counts = {MINE: [1, 1, 1, 1]}
    assert not await book.flush()
    with pytest.raises(BrokerAway):
        await book.read(today(), None)
    await transports.bring_back()

    async def is_written() -> bool:
        return await book.flush()

    await until_true(is_written)
    assert await book.read(today(), None) == {MINE: [2, 2, 2, 2]}


async def test_the_route_and_the_command_group_what_was_counted_until_now(
    transports: Transports, capsys: pytest.CaptureFixture[str]
) -> None:
    ((counter, book),) = await books(transports, 1)
    counter.counts = {MINE: [1, 2, 3, 4], ("acme", "k2", "m"): [1, 1, 1, 1]}
    door = HttpDoor(EchoCore(), identify, GatewaySettings(http_port=0, metrics_port=0), numbers, book=book)
    await door.start()
    try:
        async with RawClient(door.port) as client:
            reply = await client.ask(get("/v1/usage?group_by=tenant,model"))
            assert reply.status == 200
            row = {"tenant": "acme", "model": "m", "requests": 2, "rows": 3, "payload_bytes": 4, "execution_us": 5}
            assert reply.json["usage"] == [row]
            assert (await client.ask(get("/v1/usage?from=yesterday"))).status == 400
        rows = await asyncio.to_thread(read_usage, f"http://127.0.0.1:{door.port}", "", "", "", "key")
        capsys.readouterr()
        print_usage(rows, as_csv=True)
        assert capsys.readouterr().out == ("key,requests,rows,payload_bytes,execution_us\nk1,1,2,3,4\nk2,1,1,1,1\n")
        with pytest.raises(UsageRefused, match="400"):
            await asyncio.to_thread(read_usage, f"http://127.0.0.1:{door.port}", "", "never", "", "")
    finally:
        await door.close()


def test_days_and_groups_that_are_none_are_refused() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC).date()
    assert days_asked(None, None, now) == (now, now)
    assert days_asked("2026-02-01", None, now) == (date(2026, 2, 1), now)
    for first, last in (("2026-03-02", None), ("2020-01-01", None), ("x", None)):
        with pytest.raises(InvalidInput):
            days_asked(first, last, now)
    with pytest.raises(InvalidInput, match="group_by"):
        groups_asked("day,colour")


def test_groups_are_summed_and_sorted() -> None:
    days = [("d2", {MINE: [1, 1, 1, 1]}), ("d1", {MINE: [2, 2, 2, 2]})]
    assert [row["day"] for row in grouped(days, ("day",))] == ["d1", "d2"]
    assert grouped(days, ())[0]["requests"] == 3
