"""What others see of a worker beside the queue: heartbeats, presence, control, open cancels."""

import asyncio
import time

import pytest

from contract.envelope import pack, unpack
from contract.messages import CancelMessage, ControlReply, ControlRequest
from contract.subjects import ASK_BEATS, alive_subject, open_cancels_subject, worker_control_subject
from tests.support.requester import Requester
from tests.support.worker_kit import Double, double_config, entry, row, running, state_of
from transport.base import NoResponders


async def control(requester: Requester, worker: str, action: str, model: str = "") -> str:
    payload = pack(ControlRequest(action, model))
    answer = await requester.transport.request(worker_control_subject(worker), payload, 10.0)
    return unpack(ControlReply, answer)[0].error


async def test_somebody_answers_for_a_model_that_is_served_and_nobody_for_another(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        ask = requester.transport.request
        await w.until(lambda: "m" in w.worker.presence._alive)
        assert await ask(alive_subject("default", "m"), b"", 5.0) == w.worker.name.encode()
        with pytest.raises(NoResponders):
            await ask(alive_subject("default", "unknown"), b"", 5.0)
    with pytest.raises(NoResponders):
        await requester.transport.request(alive_subject("default", "m"), b"", 5.0)


async def test_a_heartbeat_leaves_when_somebody_asks(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        await w.beat(lambda b: state_of(b) == "READY")
        before = len(w.beats)
        requester.transport.publish(ASK_BEATS, b"")
        await w.until(lambda: len(w.beats) > before, timeout_s=0.9)
        beat = w.beats[-1]
        assert (beat.worker, beat.state, beat.group) == (w.worker.name, "serving", "default")
        assert beat.rss_bytes > 0


async def test_a_starting_worker_learns_open_cancels_before_its_first_pull(memory_broker, requester) -> None:
    transport = requester.transport
    until_ms = transport.clock.now_ms(time.monotonic()) + 30_000

    def answer(_subject: str, reply: str, _payload: bytes) -> None:
        transport.reply(reply, pack(CancelMessage(requester.name, [1], until_ms)))

    await transport.subscribe(open_cancels_subject("default"), answer)
    await transport.subscribe(open_cancels_subject("default"), answer)  # a second gateway answers too
    requester.send("m", [row(1)], ids=[1])
    requester.send("m", [row(2)], ids=[2])
    async with running(memory_broker, entry(double_config())) as w:
        await requester.all([2])
        assert w.model().seen == [2.0]


async def test_a_model_is_unloaded_and_loaded_again_on_request(memory_broker, requester) -> None:
    models = entry(double_config()), entry(double_config("other"))
    async with running(memory_broker, *models, model_control_mode="explicit", models=["m", "other"]) as w:
        await requester.all(requester.send("m", [row(1)]))
        assert await control(requester, w.worker.name, "unload", "m") == ""
        beat = await w.beat(lambda b: state_of(b) == "")
        assert state_of(beat, "other") == "READY"
        assert w.model().num_closed == 1
        (waiting,) = requester.send("m", [row(2)])
        assert (await requester.all(requester.send("other", [row(3)])))[0].code == ""
        assert waiting not in requester.answers
        assert await control(requester, w.worker.name, "load", "m") == ""
        assert (await requester.all([waiting]))[0].arrays["OUT"].tolist() == [[4.0, 4.0]]


async def test_what_a_model_has_in_hand_is_answered_before_it_is_unloaded(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config()), model_control_mode="explicit", models=["m"]) as w:
        w.model().hold.clear()
        ids = [i for n in (1, 2) for i in requester.send("m", [row(n)])]
        await w.until(lambda: len(w.worker.desk.open) == 2)
        unloading = asyncio.create_task(control(requester, w.worker.name, "unload", "m"))
        await w.beat(lambda b: state_of(b) == "UNLOADING")
        w.model().hold.set()
        assert await unloading == ""
        assert [a.code for a in await requester.all(ids)] == ["", ""]


async def test_control_says_what_it_cannot_do(memory_broker, requester) -> None:
    loads: list[str] = []

    def make(source):
        loads.append(source.config.name)
        if len(loads) > 1:
            raise RuntimeError("disk on fire")
        return Double()

    explicit = {"model_control_mode": "explicit", "models": ["*"]}
    async with running(memory_broker, entry(double_config()), make=make, **explicit) as w:
        name = w.worker.name
        assert "unknown action" in await control(requester, name, "dance")
        assert "'x' is not loaded" in await control(requester, name, "unload", "x")
        assert await control(requester, name, "load", "nowhere") != ""
        assert "disk on fire" in await control(requester, name, "load", "m")
        assert await control(requester, name, "beat") == ""


async def test_drain_on_request_ends_the_worker(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        assert await control(requester, w.worker.name, "drain") == ""
        await w.beat(lambda b: b.state == "draining")
        assert w.worker.stop.is_set()
        assert w.worker.exit_code == 0
