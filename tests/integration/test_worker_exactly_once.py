"""Whatever happens to requests on a worker, each ends once and nothing stays in hand: seeded, in process."""

import asyncio
import random

import numpy as np
import pytest

from contract.errors import ModelFailed
from contract.model_config import DynamicBatching, InstanceGroup, QueuePolicy
from contract.streams import lane_consumer
from contract.subjects import LANES, LaneAddress
from tests.support.requester import Requester
from tests.support.worker_kit import WAIT_S, Double, double_config, entry, row, running
from transport.memory import MemoryBroker

MODELS = {
    "plain": double_config(instance_groups=(InstanceGroup(2),)),
    "single": double_config(batching=None),
    "delayed": double_config(batching=DynamicBatching(preferred_batch_size=(4,), max_queue_delay_us=3_000)),
    "ordered": double_config(batching=DynamicBatching(preserve_ordering=True), instance_groups=(InstanceGroup(2),)),
    "eager": double_config(batching=DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=6))),
}


def make(_source: object) -> Double:
    model = Double()

    def refuse(array: np.ndarray) -> None:
        if (array[:, 0] == 666).any():
            raise ModelFailed("row 666 is not liked")

    model.on_run = refuse
    return model


async def until_empty(requester: Requester) -> None:
    lanes = [LaneAddress("default", "m", version, lane) for version in ("any", "1") for lane in LANES]
    async with asyncio.timeout(WAIT_S):
        for _ in range(10_000):
            left = [await requester.transport.lane_backlog(lane_consumer(lane)) for lane in lanes]
            if set(left) == {(0, 0)}:
                return
            await asyncio.sleep(0.005)
    raise AssertionError(left)


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("kind", MODELS)
async def test_every_request_ends_once_and_nothing_stays_in_hand(kind: str, inline: bool) -> None:
    chance = random.Random(f"{kind}{inline}")
    broker = MemoryBroker()
    transport = await broker.connect("gateway")
    requester = await Requester(transport).start()
    good: dict[int, float] = {}
    others: set[int] = set()
    cancelled: set[int] = set()
    async with running(broker, entry(MODELS[kind]), make=make, inline=inline) as w:
        for n in range(80):
            value = float(n + 1)
            num = chance.randint(1, 4)
            rows = chance.choice([1, 1, 2])
            lane = chance.choice(LANES)
            version = chance.choice(["", "", "1"])
            ids = requester.send("m", [row(value, rows)] * num, lane=lane, version=version)
            good.update(dict.fromkeys(ids, value))
            roll = chance.random()
            if roll < 0.1:
                others.update(requester.send("m", [row(666), {"IN": np.ones((1, 3), np.float32)}], lane=lane))
            elif roll < 0.2:
                requester.send("m", [row(value, rows)] * num, ids=ids, attempt=1, lane=lane, version=version)
            elif roll < 0.3:
                requester.cancel(*ids)
                cancelled.update(ids)
            elif roll < 0.34:
                broker.disconnect(w.worker._transport)
                await asyncio.sleep(0)
                broker.reconnect(w.worker._transport)
            if chance.random() < 0.4:
                await asyncio.sleep(chance.random() * 0.004)
        answers = await requester.all([i for i in good if i not in cancelled])
        await requester.all(list(others))
        await until_empty(requester)
        await w.until(lambda: not (w.worker.desk.open or w.worker.outbox._runs))
        assert w.worker.models["m"].is_idle
        assert w.worker.models["m"]._lanes.rows_in_hand == 0
        assert w.worker.gate.num_running == 0
    codes = {a.code for a in answers}
    assert codes <= ({"", "queue-full"} if kind == "eager" else {""})
    for answer in answers:
        if not answer.code:
            assert (answer.arrays["OUT"] == 2 * good[answer.head.id]).all()
    assert {requester.answers[i][0].code for i in others} <= {"model-failed", "invalid-input", "queue-full"}
    await transport.close()
