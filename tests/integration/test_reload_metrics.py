"""Counters while versions come, change and go: every answer is counted once, under the version that gave it."""

from collections import Counter
from pathlib import Path

import pytest

from contract.model_config import ModelStats
from gateway.ledger import Ledger
from tests.support.repository_kit import Disk, Following, Steady
from workers import desk, lifecycle


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "STILL_S", 0.01)
    monkeypatch.setattr(lifecycle, "FIRST_RETRY_S", 0.02)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    found = Disk(tmp_path / "repository")
    found.config()
    found.version("1", "x1")
    return found


def by_version(f: Following) -> dict[str, ModelStats]:
    assert f.beat is not None
    return {stats.version: stats for stats in f.beat.stats}


async def test_no_answer_is_missing_and_none_counts_as_failed_while_versions_change(
    memory_broker, requester, disk
) -> None:
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        async with Steady(f) as steady:
            disk.version("2", "x2")
            await f.until(lambda: f.ready() == {"2"})
            disk.config(extra='parameters { key: "edited" value { string_value: "yes" } }')
            await f.until(lambda: len(f.loads) >= 3 and f.ready() == {"2"})
            disk.version("3", "fail no such layer")
            await f.until(lambda: f.states().get("3") is not None and f.states()["3"].state == "UNAVAILABLE")
            disk.remove("3")
            disk.remove("2")
            await f.until(lambda: f.ready() == {"1"})
        wanted = Counter(answer.version for answer in steady.answers)
        assert set(wanted) == {"1", "2"}
        f.worker.presence.beat_soon()
        await f.until(lambda: {v: s.num_success for v, s in by_version(f).items() if s.num_success} == wanted)
        assert all(stats.num_failed == 0 for stats in by_version(f).values())
        assert sum(stats.num_inferences for stats in by_version(f).values()) == len(steady.answers)


async def test_a_version_that_went_is_told_a_while_longer_and_stays_in_the_sums(
    memory_broker, requester, disk, monkeypatch
) -> None:
    ledger = Ledger()
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        for _ in range(3):
            await f.ask()
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"})
        await f.ask()
        f.worker.presence.beat_soon()
        await f.until(lambda: "2" in by_version(f) and by_version(f)["2"].num_success == 1)
        assert by_version(f)["1"].num_success == 3
        assert by_version(f)["1"].num_instances == 0
        ledger.hear(f.beat)
        monkeypatch.setattr(desk, "LAST_WORD_S", 0.0)
        await f.until(lambda: set(by_version(f)) == {"2"})
        ledger.hear(f.beat)
        assert ledger.total("default", "m", "1").num_success == 3


async def test_a_version_that_comes_back_goes_on_counting(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        await f.ask()
        since = by_version(f)["1"].since_unix_ms
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"})
        disk.remove("2")
        while (await f.ask()).version == "2":
            pass
        f.worker.presence.beat_soon()
        await f.until(lambda: by_version(f)["1"].num_success == 2)
        assert by_version(f)["1"].since_unix_ms == since


async def test_loads_that_fail_twice_and_unloads_that_find_nothing_leave_the_counters_alone(
    memory_broker, requester, disk
) -> None:
    explicit = {"model_control_mode": "explicit", "models": ["m"]}
    async with Following(memory_broker, disk, requester, **explicit).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        await f.ask()
        disk.version("2", "x2")
        assert (await f.control("load")).error == ""
        await f.ask()
        disk.version("3", "fail no such layer")
        for _ in range(2):
            assert "no such layer" in (await f.control("load")).error
        await f.ask()
        for _ in range(2):
            await f.control("unload")
        assert (await f.control("load", "nobody")).error
        f.worker.presence.beat_soon()
        await f.until(lambda: sum(s.num_success for s in by_version(f).values()) == 3)
        found = {version: (s.num_success, s.num_failed) for version, s in by_version(f).items()}
        assert found == {"1": (1, 0), "2": (2, 0)}
