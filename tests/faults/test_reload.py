"""A repository is changed in every way while requests run on real processes: no request fails."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.envelope import pack, unpack
from contract.messages import ControlReply, ControlRequest
from contract.subjects import worker_control_subject
from tests.support.cluster import FIXTURES, Cluster, Gateway, get
from tests.support.cluster_load import Load, assert_each_ended_once
from tests.support.cluster_parts import Part, wait_until
from transport.connection import connect
from transport.settings import BrokerSettings

MODEL = "ident_f32"
BETWEEN = 40
"""Right answers between two steps."""
WITHIN_S = 40.0


class Repository:
    """A copy of fixtures that the test may change."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, model: str, version: str = "1", fixture: str = MODEL, source: str = "") -> None:
        """As a careful deployment would: complete before it has its name."""
        folder = self.root / model
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.pbtxt").exists():
            shutil.copy(FIXTURES / fixture / "config.pbtxt", folder / "config.pbtxt")
        staged = folder / f".{version}"
        staged.mkdir()
        (staged / "model.py").write_text(source or (FIXTURES / "fixture_model.py").read_text())
        staged.rename(folder / version)

    def edit(self, model: str, old: str, new: str) -> None:
        path = self.root / model / "config.pbtxt"
        text = path.read_text()
        assert old in text
        changed = path.with_name(".config")
        changed.write_text(text.replace(old, new))
        changed.replace(path)

    def remove(self, model: str, version: str = "") -> None:
        shutil.rmtree(self.root / model / version)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path / "repository")
    found.add(MODEL)
    return found


def serve(place: Cluster, repository: Repository, **settings: Any) -> tuple[Gateway, list[Part]]:
    """Two workers that load everything at the start."""
    gateway = place.start_gateway(wait=False)
    pools = [place.start_pool(["*"], f"pool-{n}", repository=repository.root, **settings) for n in range(2)]
    place.wait_gateway(gateway)
    place.wait_ready(gateway, MODEL, num_workers=2)
    return gateway, pools


async def until(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what, WITHIN_S)


def says(gateway: Gateway, path: str, words: str) -> bool:
    return re.search(words, get(gateway.http_port, f"/v2/models/{path}")[1]) is not None


async def test_every_change_of_the_repository_is_followed_and_no_request_fails(
    place: Cluster, repository: Repository
) -> None:
    gateway, _ = serve(place, repository, model_control_mode="poll", repository_poll_s=0.2)

    async def serves(*versions: str) -> None:
        """On both workers, and nothing else."""

        def holds() -> bool:
            counts = [gateway.metric("headrace_worker_instances", model=MODEL, version=v) for v in "1234"]
            return counts == [2.0 * (v in versions) for v in "1234"]

        await until(holds, f"both workers serve {versions}")

    async with Load([gateway.http_port], MODEL, num_callers=6, pause_s=0.01) as load:
        await load.has(BETWEEN)
        repository.add(MODEL, "2")
        await serves("2")
        await load.has(BETWEEN)
        repository.edit(MODEL, "max_batch_size: 8", "max_batch_size: 4")
        await until(lambda: says(gateway, f"{MODEL}/config", '"max_batch_size":4'), "the new config serves")
        repository.add(MODEL, "3", source="raise RuntimeError('the weights are missing')\n")
        await until(lambda: says(gateway, f"{MODEL}/versions/3/ready", "the weights are missing"), "the reason shows")
        await load.has(BETWEEN)
        await serves("2")
        repository.edit(MODEL, "max_batch_size: 4", "max_batch_size: banana")
        await load.has(BETWEEN)
        repository.edit(MODEL, "max_batch_size: banana", "max_batch_size: 4")
        repository.remove(MODEL, "3")
        repository.add(MODEL, "3")
        await serves("3")
        await load.has(BETWEEN)
        repository.remove(MODEL, "3")
        await serves("2")
        repository.edit(MODEL, "max_batch_size: 4", "max_batch_size: 4\nversion_policy { all { } }")
        await serves("1", "2")
        await load.has(BETWEEN)
    assert_each_ended_once(load.endings, load.timeout_s)
    assert {e.status for e in load.endings} == {200}


async def test_a_model_that_loads_for_long_says_for_how_long_and_leaves_the_rest_alone(
    place: Cluster, repository: Repository
) -> None:
    gateway, _ = serve(place, repository, model_control_mode="poll", repository_poll_s=0.2)
    async with Load([gateway.http_port], MODEL, num_callers=4, pause_s=0.01) as load:
        source = (FIXTURES / "fixture_model.py").read_text() + "\n\ntime.sleep(6)\n"
        repository.add("slow_load", fixture="slow_load", source=source)
        await until(
            lambda: says(gateway, "slow_load/ready", r"is loading, for [1-9]\d* s so far"), "the progress shows"
        )
        assert get(gateway.http_port, "/v2/models/slow_load/ready")[0] == 503
        assert gateway.is_ready()
        await load.has(BETWEEN)
        await until(lambda: gateway.is_ready("slow_load"), "it is loaded")
        repository.remove("slow_load")
        await until(lambda: says(gateway, "slow_load/ready", "is unloaded"), "it is gone")
    assert_each_ended_once(load.endings, load.timeout_s)
    assert {e.status for e in load.endings} == {200}


async def test_a_worker_that_dies_comes_back_with_what_was_loaded_on_request(
    place: Cluster, repository: Repository
) -> None:
    gateway, pools = serve(place, repository, model_control_mode="explicit")
    repository.add("late")

    async def control(pool: Part, action: str, model: str) -> None:
        """What a gateway asks of a worker, without one."""
        request = pack(ControlRequest(action, model))
        transport = await connect(BrokerSettings(servers=[place.broker.url]), "test")
        try:
            payload = await transport.request(worker_control_subject(worker_of(pool)), request, WITHIN_S)
            assert unpack(ControlReply, payload)[0].error == ""
        finally:
            await transport.close()

    for pool in pools:
        await control(pool, "load", "late")
        await control(pool, "unload", MODEL)
    await until(lambda: gateway.is_ready("late"), "it serves")
    before = worker_of(pools[0])
    for child in psutil.Process(pools[0].pid).children():
        os.kill(child.pid, signal.SIGKILL)
    await until(lambda: worker_of(pools[0]) != before, "another worker is there")
    await until(lambda: gateway.metric("headrace_worker_instances", model="late") == 2, "both serve it")
    assert not gateway.is_ready(MODEL)


def worker_of(pool: Part) -> str:
    """The youngest worker's name."""
    return str([e["worker"] for e in pool.events() if e.get("process") == "worker"][-1])
