"""A worker that follows its repository: new, changed, broken, repaired and deleted, while requests run."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.support.repository_kit import CONFIG, Disk, Following, Steady
from tests.support.worker_kit import row
from workers import lifecycle


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


async def value(f: Following, version: str = "") -> float:
    return float((await f.ask(version)).arrays["OUT"][0, 0])


async def test_a_new_version_takes_over_when_it_is_ready_and_the_old_one_goes(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester).running() as f, Steady(f) as steady:
        await f.until(lambda: f.ready() == {"1"})
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"} and f.states()["1"].reason == "unloaded")
        assert await value(f) == 2
        await f.until(lambda: f.instances[0].is_closed)
    assert {a.version for a in steady.answers} == {"1", "2"}


async def test_the_old_version_serves_while_the_new_one_loads_and_says_since_when(
    memory_broker, requester, disk
) -> None:
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        async with Steady(f) as steady:
            disk.version("2", "hold")
            await f.until(lambda: "2" in f.states())
            assert f.states()["2"].state == "LOADING"
            assert f.states()["2"].since_unix_ms > 0
            before = len(steady.answers)
            while len(steady.answers) < before + 20:
                await f.ask()
            assert {a.version for a in steady.answers} == {"1"}
            f.let_go.set()
            await f.until(lambda: f.ready() == {"2"})
            assert f.states()["2"].since_unix_ms == 0


async def test_a_model_that_loads_for_long_leaves_the_others_alone(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester).running() as f:
        disk.config("slow")
        disk.version("1", "hold", "slow")
        await f.until(lambda: "1" in f.states("slow"))
        assert await value(f) == 1
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"})
        assert f.states("slow")["1"].state == "LOADING"
        f.let_go.set()
        await f.until(lambda: f.ready("slow") == {"1"})


async def test_a_broken_version_hurts_nobody_tells_its_reason_and_is_tried_again(
    memory_broker, requester, disk
) -> None:
    async with Following(memory_broker, disk, requester).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        disk.version("2", "fail no such layer")
        await f.until(lambda: f.states().get("2") is not None and f.states()["2"].state == "UNAVAILABLE")
        assert "no such layer" in f.states()["2"].reason
        assert f.ready() == {"1"}
        await f.until(lambda: f.loads.count(("2", "fail no such layer")) >= 3)
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"})
        assert f.states()["2"].reason == ""


async def test_a_start_with_a_broken_newest_version_serves_the_next_and_moves_up_after_the_repair(
    memory_broker, requester, disk
) -> None:
    disk.version("2", "x2")
    disk.version("3", "fail broken")
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"2"})
        assert await value(f) == 2
        assert "broken" in f.states()["3"].reason
        disk.version("3", "x3")
        await f.until(lambda: f.ready() == {"3"})


async def test_a_version_overwritten_with_rubbish_goes_on_serving_what_was_loaded(
    memory_broker, requester, disk
) -> None:
    async with Following(memory_broker, disk, requester).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        disk.version("1", "fail rubbish")
        await f.until(lambda: "rubbish" in f.states()["1"].reason)
        assert f.ready() == {"1"}
        assert await value(f) == 1
        disk.version("1", "x5")
        await f.until(lambda: f.states()["1"].reason == "")
        assert await value(f) == 5


async def test_a_changed_config_takes_over_at_once_and_a_broken_one_is_only_told(
    memory_broker, requester, disk
) -> None:
    async with Following(memory_broker, disk, requester).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        disk.config(text=CONFIG.replace("8", "4"))
        await f.until(lambda: f.beat.models[0].config.max_batch_size == 4)
        assert f.ready() == {"1"}
        disk.config(text="max_batch_size: ")
        await f.until(lambda: "config.pbtxt" in f.states()["1"].reason)
        assert f.ready() == {"1"}
        assert f.beat.models[0].config.max_batch_size == 4
        disk.config(text=CONFIG.replace("8", "2"))
        await f.until(lambda: f.beat.models[0].config.max_batch_size == 2)
        assert f.states()["1"].reason == ""


async def test_a_changed_config_that_does_not_load_leaves_the_old_one_serving(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        disk.version("1", "fail not with this config")
        disk.config(text=CONFIG.replace("8", "4"))
        await f.until(lambda: "not with this config" in f.states()["1"].reason)
        assert f.ready() == {"1"}
        assert f.beat.models[0].config.max_batch_size == 8
        disk.version("1", "x7")
        await f.until(lambda: f.beat.models[0].config.max_batch_size == 4)
        assert await value(f) == 7


@pytest.mark.parametrize(
    ("policy", "ready"),
    [
        ("version_policy { latest { num_versions: 2 } }", {"2", "3"}),
        ("version_policy { all { } }", {"1", "2", "3"}),
        ("version_policy { specific { versions: [ 1, 3 ] } }", {"1", "3"}),
    ],
)
async def test_a_policy_is_honoured_at_the_start_and_when_it_is_edited(
    memory_broker, requester, disk, policy, ready
) -> None:
    disk.version("2", "x2")
    disk.version("3", "x3")
    disk.config(extra=policy)
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == ready)
        for version in ready:
            assert await value(f, version) == float(version)
        num_loads = len(f.loads)
        async with Steady(f):
            disk.config(extra="version_policy { specific { versions: [ 3 ] } }")
            await f.until(lambda: f.ready() == {"3"})
        assert len(f.loads) == num_loads, "what serves already is not loaded anew" if "3" in ready else ""


async def test_a_deleted_version_and_a_deleted_model_go_in_order(memory_broker, requester, disk) -> None:
    disk.config(extra="version_policy { all { } }")
    disk.version("2", "x2")
    disk.config("other")
    disk.version("1", "x1", "other")
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1", "2"} and f.ready("other") == {"1"})
        async with Steady(f):
            disk.remove("2")
            await f.until(lambda: f.ready() == {"1"} and f.states()["2"].reason == "unloaded")
        await f.until_no_consumer("m", "2")
        assert await f.backlog("m", "1") == (0, 0)
        disk.remove()
        await f.until(lambda: f.states() == {})
        assert f.beat.unloaded == {"m": "unloaded"}
        for version in ("any", "1"):
            await f.until_no_consumer("m", version)
        assert f.ready("other") == {"1"}
        disk.config()
        disk.version("1", "x4")
        await f.until(lambda: f.ready() == {"1"})
        assert await value(f) == 4
        assert f.beat.unloaded == {}


async def test_another_workers_consumer_is_left_alone(memory_broker, requester, disk, tmp_path) -> None:
    beside = Disk(tmp_path / "beside")
    beside.config()
    beside.version("1", "x1")
    async with (
        Following(memory_broker, disk, requester).running() as f,
        Following(memory_broker, beside, requester).running() as g,
    ):
        await f.until(lambda: f.ready() == {"1"})
        await g.until(lambda: g.ready() == {"1"})
        disk.remove()
        await f.until(lambda: f.states() == {})
        assert await f.backlog("m", "any") == (0, 0)
        assert await value(f) == 1


async def test_a_model_still_being_copied_is_left_until_it_is_still(
    memory_broker, requester, disk, monkeypatch
) -> None:
    monkeypatch.setattr(lifecycle, "STILL_S", 0.2)
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        for n in range(8):
            disk.version("2", f"fail half copied {n}")
            await asyncio.sleep(0.05)
        disk.version("2", "x2")
        await f.until(lambda: f.ready() == {"2"})
        assert [kind for _, kind in f.loads if kind.startswith("fail")] == []


async def test_a_repository_that_is_away_for_a_moment_unloads_nothing(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        away = disk.root.rename(disk.root.with_name("away"))
        async with Steady(f) as steady:
            while len(steady.answers) < 100:
                await f.ask()
        assert f.ready() == {"1"}
        away.rename(disk.root)


async def test_without_polling_a_change_is_not_seen_but_a_failed_load_is_tried_again(
    memory_broker, requester, disk
) -> None:
    disk.config("other")
    disk.version("1", "fail at first", "other")
    async with Following(memory_broker, disk, requester, model_control_mode="none").running() as f:
        await f.until(lambda: f.ready() == {"1"})
        disk.version("2", "x2")
        disk.version("1", "x1", "other")
        await f.until(lambda: f.ready("other") == {"1"})
        assert f.ready() == {"1"}
        reply = await f.control("load")
        assert (reply.code, "explicit" in reply.error) == ("not-supported", True)


# ------------------------------------------------------------------ on request


async def test_explicit_mode_loads_what_is_asked_for_and_tells_what_it_could(memory_broker, requester, disk) -> None:
    disk.config("other")
    disk.version("1", "x3", "other")
    explicit = {"model_control_mode": "explicit", "models": ["other"]}
    async with Following(memory_broker, disk, requester, **explicit).running() as f:
        await f.until(lambda: f.ready("other") == {"1"})
        assert f.beat.unloaded == {"m": ""}
        assert (await f.control("load")).error == ""
        assert await value(f) == 1
        assert (await f.control("unload")).error == ""
        await f.until(lambda: f.beat.unloaded == {"m": "unloaded"})
        assert (await f.control("unload")).error == "", "again is fine"
        assert (await f.control("unload", "nobody")).code == "not-found"
        assert (await f.control("load", "nobody")).code == "not-found"
        assert (await f.control("load", "../repository/m")).code == "not-found"
        disk.config("late")
        await f.until(lambda: "late" in f.beat.unloaded)


async def test_a_load_on_request_under_requests_swaps_and_a_failed_one_changes_nothing(
    memory_broker, requester, disk
) -> None:
    explicit = {"model_control_mode": "explicit", "models": ["*"]}
    async with Following(memory_broker, disk, requester, **explicit).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        disk.version("1", "x2")
        assert (await f.control("load")).error == ""
        assert await value(f) == 2
        disk.version("1", "fail on request")
        reply = await f.control("load")
        assert (reply.code, "on request" in reply.error) == ("model-failed", True)
        assert await value(f) == 2


async def test_overrides_are_refused_unless_allowed(memory_broker, requester, disk) -> None:
    async with Following(memory_broker, disk, requester, model_control_mode="explicit").running() as f:
        await f.until(lambda: f.beat is not None and f.beat.state == "serving")
        blob = await requester.transport.put_blob("g", [msgspec.msgpack.encode({"1/kind": b"x8"})])
        assert (await f.control("load", config="{}")).code == "forbidden"
        assert (await f.control("load", config="{}", files=blob)).code == "forbidden"
        assert f.states() == {}


OVERRIDE = (
    '{"backend": "double", "max_batch_size": 3, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],'
    ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]}'
)


async def test_an_override_serves_until_the_next_load_and_its_files_go_with_it(
    memory_broker, requester, disk, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    explicit = {"model_control_mode": "explicit", "models": ["m"], "allow_model_upload": True}

    async def upload(name: str, data: bytes):
        return await requester.transport.put_blob("g", [msgspec.msgpack.encode({name: data})])

    def kinds() -> list[str]:
        return sorted(p.read_text() for p in tmp_path.glob("headrace-models-*/**/kind"))

    async with Following(memory_broker, disk, requester, **explicit).running() as f, Steady(f):
        await f.until(lambda: f.ready() == {"1"})
        assert (await f.control("load", config=OVERRIDE)).error == ""
        assert f.worker.models["m"].entry.config.max_batch_size == 3
        assert await value(f) == 1
        assert (await f.control("load", config=OVERRIDE, files=await upload("7/kind", b"x8"))).error == ""
        assert await value(f) == 8
        assert kinds() == ["x8"]
        reply = await f.control("load", config=OVERRIDE, files=await upload("7/kind", b"fail sent"))
        assert (reply.code, "sent" in reply.error) == ("invalid-input", True)
        assert kinds() == ["x8"]
        assert await value(f) == 8
        reply = await f.control("load", config=OVERRIDE, files=await upload("../kind", b"evil"))
        assert reply.code == "invalid-input"
        assert (await f.control("load")).error == ""
        assert await value(f) == 1
        assert kinds() == []
        assert (await f.control("load", "fresh", config=OVERRIDE, files=await upload("1/kind", b"x6"))).error == ""
        assert (await f.ask(model="fresh")).arrays["OUT"].tolist() == (row(6)["IN"]).tolist()
    assert kinds() == []


async def test_the_successor_of_a_worker_loads_what_that_one_was_asked_for(
    memory_broker, requester, disk, tmp_path
) -> None:
    disk.config("other")
    disk.version("1", "x3", "other")
    slot = tmp_path / "slot"
    slot.mkdir()
    explicit = {"model_control_mode": "explicit", "models": ["m"], "allow_model_upload": True}
    async with Following(memory_broker, disk, requester, **explicit).running(slot) as f:
        await f.until(lambda: f.ready() == {"1"})
        assert (await f.control("load", "other")).error == ""
        blob = await requester.transport.put_blob("g", [msgspec.msgpack.encode({"1/kind": b"x6"})])
        assert (await f.control("load", "sent", config=OVERRIDE, files=blob)).error == ""
        assert (await f.control("unload", "m")).error == ""
    async with Following(memory_broker, disk, requester, **explicit).running(slot) as f:
        await f.until(lambda: f.ready("other") == {"1"} and f.ready("sent") == {"1"})
        assert f.ready() == set()
        assert (await f.ask(model="sent")).arrays["OUT"].tolist() == (row(6)["IN"]).tolist()


async def test_a_new_version_is_tried_by_name_while_the_default_one_keeps_the_traffic(
    memory_broker, requester, disk
) -> None:
    both = "version_policy { all { } }\n"
    pinned = 'parameters { key: "default_version" value { string_value: "%s" } }\n'
    disk.config(extra=both + pinned % "1")
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        async with Steady(f) as steady:
            disk.version("2", "x2")
            await f.until(lambda: f.ready() == {"1", "2"})
            assert await value(f, "2") == 2
            before = len(steady.answers)
            while len(steady.answers) < before + 20:
                await f.ask()
            assert {a.version for a in steady.answers} == {"1"}
        disk.config(extra=both + pinned % "2")
        answer = await f.ask()
        while answer.version == "1":
            answer = await f.ask()
        assert await value(f, "1") == 1


async def test_a_default_version_that_is_not_there_leaves_the_highest(memory_broker, requester, disk) -> None:
    disk.config(extra='parameters { key: "default_version" value { string_value: "7" } }\n')
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        assert (await f.ask()).version == "1"


async def test_the_default_version_is_loaded_before_a_higher_one(memory_broker, requester, disk) -> None:
    disk.config(extra='version_policy { all { } } parameters { key: "default_version" value { string_value: "1" } }\n')
    disk.version("2", "hold")
    async with Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        assert (await f.ask()).version == "1"
        f.let_go.set()
        await f.until(lambda: f.ready() == {"1", "2"})
