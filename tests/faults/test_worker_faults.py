"""Workers as processes on a real nats-server: killed, stopped, drained, orphaned. Every request ends exactly once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.broker import Broker
from tests.support.requester import Requester
from tests.support.worker_processes import MODELS, Beats, Process, executions, is_alive, until
from transport.base import Transport
from transport.connection import connect
from transport.settings import BrokerSettings
from workers.settings import WorkerSettings

Start = Callable[..., Process]


@pytest.fixture
async def transport(broker: Broker) -> AsyncIterator[Transport]:
    found = await connect(broker.settings, "test")
    yield found
    await found.close()


@pytest.fixture
async def requester(transport: Transport) -> Requester:
    return await Requester(transport).start()


@pytest.fixture
async def beats(transport: Transport) -> Beats:
    return await Beats().start(transport)


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def start_one(module: str, *models: str, **fields) -> Process:
        fields.setdefault("broker", broker.settings)
        settings = WorkerSettings(model_repository=MODELS, models=list(models), **fields)
        processes.append(Process(module, settings, tmp_path))
        return processes[-1]

    yield start_one
    for process in processes:
        process.end()


def number(value: float) -> dict[str, np.ndarray]:
    return {"INPUT0": np.full((1, 2), value, np.float32)}


async def test_work_of_a_killed_worker_is_answered_by_another_once(requester, beats, start, tmp_path) -> None:
    first = start("workers.worker", "slow_500")
    await beats.ready(first.pid, "slow_500")
    ids = [i for n in range(6) for i in requester.send("slow_500", [number(n + 1)], timeout_s=60)]
    await until(lambda: bool(executions(tmp_path, "slow_500")))
    second = start("workers.worker", "slow_500")
    first.signal(signal.SIGKILL)
    answers = await requester.all(ids, timeout_s=60)
    assert [a.code for a in answers] == [""] * 6
    assert [a.arrays["OUTPUT0"][0, 0] for a in answers] == [1, 2, 3, 4, 5, 6]
    assert {a.worker for a in answers} == {beats.last[second.pid].worker}
    assert {len(found) for found in requester.answers.values()} == {1}


async def test_a_stopped_worker_that_wakes_up_late_answers_nothing(requester, beats, start, tmp_path) -> None:
    first = start("workers.worker", "slow_500")
    await beats.ready(first.pid, "slow_500")
    ids = [i for n in range(4) for i in requester.send("slow_500", [number(n + 1)], timeout_s=60)]
    await until(lambda: bool(executions(tmp_path, "slow_500")))
    first.signal(signal.SIGSTOP)
    start("workers.worker", "slow_500")
    await requester.all(ids, timeout_s=60)
    num_beats = beats.num[first.pid]
    first.signal(signal.SIGCONT)
    await until(lambda: beats.num[first.pid] > num_beats + 2)
    assert {len(found) for found in requester.answers.values()} == {1}
    more = await requester.all(requester.send("slow_500", [number(9)], timeout_s=60))
    assert more[0].code == ""


async def test_sigterm_drains_and_exits_with_zero(requester, beats, start, tmp_path) -> None:
    worker = start("workers.worker", "slow_500")
    await beats.ready(worker.pid, "slow_500")
    ids = requester.send("slow_500", [number(1)], timeout_s=60)
    await until(lambda: bool(executions(tmp_path, "slow_500")))
    waiting = requester.send("slow_500", [number(2)], timeout_s=60)
    worker.signal(signal.SIGTERM)
    assert (await requester.all(ids))[0].code == ""
    assert await worker.ended() == 0
    assert waiting[0] not in requester.answers
    start("workers.worker", "slow_500")
    assert (await requester.all(waiting, timeout_s=60))[0].code == ""


async def test_a_worker_ends_when_its_parent_does(beats, start) -> None:
    worker = start("workers.worker", "ident_f32")
    await beats.ready(worker.pid, "ident_f32")
    worker.popen.stdin.close()
    assert await worker.ended() == 0


async def test_a_killed_pool_leaves_no_orphan(beats, start) -> None:
    pool = start("workers.pool", "ident_f32", num_processes=2)
    await until(lambda: len(beats.ready_pids("ident_f32")) == 2)
    pids = beats.ready_pids("ident_f32")
    pool.signal(signal.SIGKILL)
    await pool.ended()
    await until(lambda: not any(is_alive(pid) for pid in pids))


async def test_a_pool_restarts_what_dies_and_drains_all_on_sigterm(requester, beats, start) -> None:
    pool = start("workers.pool", "ident_f32", num_processes=1, restart_backoff_s=0.1)
    await until(lambda: len(beats.ready_pids("ident_f32")) == 1)
    (first,) = beats.ready_pids("ident_f32")
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(beats.ready_pids("ident_f32")) == 1 and first not in beats.ready_pids("ident_f32"))
    assert (await requester.all(requester.send("ident_f32", [number(1)])))[0].code == ""
    (died,) = pool.events("worker-died")
    assert (died["signal"], died["restart_in_s"]) == ("SIGKILL", 0.1)
    (second,) = beats.ready_pids("ident_f32")
    pool.signal(signal.SIGTERM)
    assert await pool.ended() == 0
    assert not is_alive(second)


async def test_a_request_that_kills_its_workers_is_poison_and_its_mates_are_answered(requester, beats, start) -> None:
    start("workers.pool", "crash_worker", num_processes=2, restart_backoff_s=0.1)
    await until(lambda: len(beats.ready_pids("crash_worker")) == 2)
    ids = requester.send("crash_worker", [number(1), number(13), number(2), number(3)], timeout_s=100)
    answers = await requester.all(ids, timeout_s=100)
    assert [a.code for a in answers] == ["", "poison-request", "", ""]
    assert {len(requester.answers[i]) for i in ids} == {1}
    assert (await requester.all(requester.send("crash_worker", [number(5)], timeout_s=60)))[0].code == ""


async def test_a_request_that_kills_its_models_process_hurts_only_itself(requester, beats, start) -> None:
    worker = start("workers.worker", "crash")
    await beats.ready(worker.pid, "crash")
    answers = await requester.all(requester.send("crash", [number(1), number(13), number(2)]))
    assert [a.code for a in answers] == ["", "poison-request", ""]
    assert (await requester.all(requester.send("crash", [number(5)])))[0].code == ""
    assert worker.popen.poll() is None


@pytest.mark.parametrize("model", ["hang", "hang_worker"])
async def test_a_model_that_hangs_is_ended_and_serves_again(requester, beats, start, model: str) -> None:
    worker = start("workers.worker", model)
    await beats.ready(worker.pid, model)
    (late,) = await requester.all(requester.send(model, [number(99)]))
    assert late.code == "execution-timeout"
    assert (await requester.all(requester.send(model, [number(5)])))[0].code == ""


async def test_a_restarted_broker_finds_its_workers_again(broker, requester, beats, start) -> None:
    worker = start("workers.worker", "ident_f32")
    await beats.ready(worker.pid, "ident_f32")
    await requester.all(requester.send("ident_f32", [number(1)]))
    num_reconnects = requester.transport.num_reconnects
    await broker.restart()
    await until(lambda: requester.transport.num_reconnects > num_reconnects and requester.transport.is_connected)
    await requester.start()
    (answer,) = await requester.all(requester.send("ident_f32", [number(2)]))
    assert answer.arrays["OUTPUT0"].tolist() == [[2.0, 2.0]]


async def test_a_worker_waits_for_a_broker_that_comes_later(broker, start) -> None:
    broker.kill()
    impatient = BrokerSettings(servers=[broker.url], connect_timeout_s=1)
    worker = start("workers.worker", "ident_f32", broker=impatient)
    await until(lambda: bool(worker.events("broker-not-there")))
    assert worker.popen.poll() is None
    await broker.start()
    late = await connect(broker.settings, "late")
    beats = await Beats().start(late)
    await beats.ready(worker.pid, "ident_f32")
    await late.close()


async def test_a_rolling_restart_under_load_fails_nobody(requester, beats, start) -> None:
    workers = [start("workers.worker", "slow_5") for _ in range(2)]
    for worker in workers:
        await beats.ready(worker.pid, "slow_5")
    ids: list[int] = []
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            ids.extend(requester.send("slow_5", [number(n + 1) for n in range(3)], timeout_s=60))
            await asyncio.sleep(0.01)

    loading = asyncio.create_task(load())
    for _ in range(2):
        workers.append(start("workers.worker", "slow_5"))
        await beats.ready(workers[-1].pid, "slow_5")
        oldest = workers.pop(0)
        oldest.signal(signal.SIGTERM)
        assert await oldest.ended() == 0
    stop.set()
    await loading
    answers = await requester.all(ids, timeout_s=60)
    assert len(ids) > 100
    assert {a.code for a in answers} == {""}
    assert [a.arrays["OUTPUT0"][0, 0] for a in answers] == [n % 3 + 1 for n in range(len(ids))]


async def test_coalesced_work_of_a_killed_worker_is_answered_once_each(requester, beats, start) -> None:
    workers = [start("workers.worker", "slow_50") for _ in range(2)]
    for worker in workers:
        await beats.ready(worker.pid, "slow_50")
    ids = [i for _ in range(20) for i in requester.send("slow_50", [number(n + 1) for n in range(8)], timeout_s=60)]
    await until(lambda: len(requester.answers) >= 16)
    workers[0].signal(signal.SIGKILL)
    answers = await requester.all(ids, timeout_s=60)
    assert [a.arrays["OUTPUT0"][0, 0] for a in answers] == [n % 8 + 1 for n in range(len(ids))]
    assert {a.code for a in answers} == {""}
