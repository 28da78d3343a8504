"""Load, unload and the index through a gateway's core, on real workers and an in-process broker."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.errors import (
    DeadlineExceeded,
    Forbidden,
    InvalidInput,
    ModelFailed,
    ModelNotReady,
    NotFound,
    NotSupported,
    NoWorker,
    TooLarge,
)
from contract.messages import TensorHead
from contract.principal import DEFAULT_PRINCIPAL
from gateway.core import Answer, IndexEntry, InferRequest, Outcome
from gateway.dispatch import Dispatch
from gateway.settings import GatewaySettings
from tests.support.gateway_kit import infer_request
from tests.support.lane_worker import eventually
from tests.support.repository_kit import CONFIG, Disk, Following, Times

EXPLICIT = {"model_control_mode": "explicit"}
OVERRIDE = (
    '{"backend": "double", "max_batch_size": 3, "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}],'
    ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]}'
)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    found = Disk(tmp_path / "repository")
    found.config()
    found.version("1", "x2")
    return found


@asynccontextmanager
async def gateway(memory_broker, **settings: Any) -> AsyncIterator[Dispatch]:
    transport = await memory_broker.connect("gateway")
    core = Dispatch(GatewaySettings(**settings), transport)
    await core.start()
    yield core
    await core.close()
    await transport.close()


def one_row(deadline_s: float) -> InferRequest:
    heads = [TensorHead("IN", "FP32", (1, 2))]
    return infer_request(np.ones((1, 2), np.float32).tobytes(), heads=heads, deadline_s=deadline_s)


def ask(core: Dispatch, model: str = "m", version: str = "", within_s: float = 20.0) -> asyncio.Future[Outcome]:
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Outcome] = loop.create_future()
    target = core.resolve(DEFAULT_PRINCIPAL, "", model, version)
    core.submit(target, one_row(loop.time() + within_s), heard.set_result)
    return heard


async def value(core: Dispatch) -> float:
    outcome = await ask(core)
    assert isinstance(outcome, Answer), outcome
    return float(np.frombuffer(outcome.data[0], np.float32)[0])


async def test_load_and_unload_reach_every_worker_and_the_index_tells(memory_broker, requester, disk) -> None:
    async with (
        Following(memory_broker, disk, requester, **EXPLICIT).running() as f,
        Following(memory_broker, disk, requester, **EXPLICIT).running() as g,
        gateway(memory_broker) as core,
    ):
        await eventually(lambda: len(core.registry.workers()) == 2)
        await eventually(lambda: core.repository.index() == [IndexEntry("m", "", "", "")])
        assert core.repository.index(ready=True) == []
        with pytest.raises(ModelNotReady, match="not loaded"):
            core.resolve(DEFAULT_PRINCIPAL, "", "m", "")
        await core.repository.load("m")
        assert (len(f.loads), len(g.loads)) == (1, 1)
        await eventually(lambda: core.repository.index(ready=True) == [IndexEntry("m", "1", "READY", "")])
        assert await value(core) == 2
        await core.repository.unload("m", unload_dependents=True)
        await eventually(lambda: core.repository.index() == [IndexEntry("m", "", "UNAVAILABLE", "unloaded")])
        await core.repository.unload("m")


async def test_a_load_that_fails_on_a_worker_gives_its_reason_and_the_index_keeps_it(
    memory_broker, requester, disk
) -> None:
    async with (
        Following(memory_broker, disk, requester, **EXPLICIT, models=["m"]).running() as f,
        gateway(memory_broker) as core,
    ):
        await f.until(lambda: f.ready() == {"1"})
        disk.version("1", "fail no such layer")
        with pytest.raises(ModelFailed, match="no such layer"):
            await core.repository.load("m")
        await eventually(lambda: "no such layer" in core.repository.index()[0].reason)
        assert core.repository.index()[0].state == "READY"
        assert await value(core) == 2
        for model in ("nobody", "../m"):
            with pytest.raises(NotFound):
                await core.repository.load(model)
            with pytest.raises(NotFound):
                await core.repository.unload(model)


async def test_overrides_go_through_the_broker_and_are_forbidden_unless_allowed(
    memory_broker, requester, disk, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with gateway(memory_broker) as core:
        async with Following(memory_broker, disk, requester, **EXPLICIT, models=["m"]).running() as f:
            await f.until(lambda: f.ready() == {"1"})
            with pytest.raises(Forbidden, match="allow_model_upload"):
                await core.repository.load("m", config=OVERRIDE)
        allowed = {**EXPLICIT, "models": ["m"], "allow_model_upload": True}
        async with Following(memory_broker, disk, requester, **allowed).running() as f:
            await f.until(lambda: f.ready() == {"1"})
            large = {"1/kind": b"x7", "1/weights": bytes(3_000_000)}
            await eventually(lambda: len(core.registry.workers()) == 1 and core.registry.card("default", "m"))
            await core.repository.load("m", config=OVERRIDE, files=large)
            assert await value(core) == 7
            await core.repository.load("fresh", config=OVERRIDE, files={"1/kind": b"x5"})
            with pytest.raises(InvalidInput, match="plain path"):
                await core.repository.load("m", config=OVERRIDE, files={"../../x": b""})
            with pytest.raises(InvalidInput, match="without a config"):
                await core.repository.load("m", files={"1/kind": b"x7"})
            with pytest.raises(InvalidInput, match="not JSON"):
                await core.repository.load("m", config="{")
            with pytest.raises(TooLarge):
                await core.repository.load("m", config=" " * 300_000)


async def test_a_model_that_loads_says_for_how_long(memory_broker, requester, disk) -> None:
    disk.config("slow")
    disk.version("1", "hold", "slow")

    def progress() -> bool:
        try:
            core.resolve(DEFAULT_PRINCIPAL, "", "slow", "")
        except (ModelNotReady, NotFound) as e:
            return "is loading, for 1 s so far" in e.message
        return False

    async with gateway(memory_broker) as core, Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1"})
        await eventually(progress)


async def test_who_cannot_load_says_so(memory_broker, requester, disk) -> None:
    async with gateway(memory_broker, model_load_timeout_s=0.2) as core:
        with pytest.raises(NoWorker):
            await core.repository.load("m")
        async with Following(memory_broker, disk, requester).running() as f:
            await f.until(lambda: f.ready() == {"1"})
            await eventually(lambda: core.registry.card("default", "m"))
            with pytest.raises(NotSupported, match="explicit"):
                await core.repository.unload("m")
        disk.version("1", "hold")
        async with Following(memory_broker, disk, requester, **EXPLICIT).running() as f:
            await eventually(lambda: [b.control_mode for b in core.registry.workers()] == ["explicit"])
            with pytest.raises(DeadlineExceeded, match="may still load"):
                await core.repository.load("m")


class Blocking(Times):
    """Runs when the test lets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.started, self.hold = threading.Event(), threading.Event()

    def run(self, inputs, outputs):
        if inputs["IN"].any():
            self.started.set()
            assert self.hold.wait(20)
        return super().run(inputs, outputs)


async def test_what_runs_at_an_unload_is_answered_and_what_waits_ends_with_503(
    memory_broker, requester, disk, monkeypatch
) -> None:
    disk.config(text=CONFIG.replace("max_batch_size: 8", "max_batch_size: 1"))
    blocking = Blocking()
    f = Following(memory_broker, disk, requester, **EXPLICIT, models=["m"], inline_below_us=0)
    monkeypatch.setattr(f, "load", lambda _source: blocking)
    async with gateway(memory_broker) as core, f.running():
        await f.until(lambda: f.ready() == {"1"})
        await eventually(lambda: core.registry.card("default", "m"))
        asked = [ask(core, version=v) for _ in range(20) for v in ("", "1")]
        await asyncio.to_thread(blocking.started.wait, 20)
        unloading = asyncio.create_task(core.repository.unload("m"))
        await f.until(lambda: f.states()["1"].state == "UNLOADING")
        assert not any(isinstance(h.result(), Exception) for h in asked if h.done())
        blocking.hold.set()
        await unloading
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*asked)
        answered = [o for o in outcomes if isinstance(o, Answer)]
        refused = [o for o in outcomes if isinstance(o, ModelNotReady)]
        assert answered
        assert refused
        assert len(answered) + len(refused) == len(asked)
        assert "unloaded before" in refused[0].message


async def test_a_dropped_versions_waiting_requests_end_and_the_others_do_not(memory_broker, requester, disk) -> None:
    disk.version("2", "x3")
    disk.config(extra="version_policy { all { } }")
    async with gateway(memory_broker) as core, Following(memory_broker, disk, requester).running() as f:
        await f.until(lambda: f.ready() == {"1", "2"})
        await eventually(lambda: core.registry.card("default", "m"))
        target = core.resolve(DEFAULT_PRINCIPAL, "", "m", "1")
        disk.remove("1")
        await f.until(lambda: f.states().get("1") is not None and f.states()["1"].reason == "unloaded")
        await f.until_no_consumer("m", "1")
        heard: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        late = one_row(asyncio.get_running_loop().time() + 20)
        core.submit(target, late, heard.set_result)
        async with asyncio.timeout(5):
            assert isinstance(await heard, ModelNotReady)
        assert await value(core) == 3
