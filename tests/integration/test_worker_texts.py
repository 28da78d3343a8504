"""A real worker tokenises before it batches, and its requests may be joined, refused, cancelled or redelivered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.model_config import ModelConfig
from contract.subjects import LaneAddress
from tests.support.requester import Requester
from tests.support.text_kit import text_model, word_tokenizer
from tests.support.worker_kit import WAIT_S, running, state_of
from transport.base import Delivery
from transport.memory import MemoryBroker
from workers.backends.base import InstanceSource
from workers.repository.scan import ModelEntry
from workers.text.texts import INLINE_BYTES

LONG = "a river " * INLINE_BYTES


class Counting:
    """Answers how many tokens a row has, twice. Notes each execution's ids; blocks while `hold` is cleared."""

    is_request_wise = False
    holds_process = False

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.started = threading.Event()
        self.hold = threading.Event()
        self.hold.set()

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        if ids.any():  # zeros are the warm-up's
            self.shapes.append(ids.shape)
            self.started.set()
            assert self.hold.wait(WAIT_S), "the test let go"
        assert ((ids != 0) == (mask != 0)).all() or not ids.any()
        return {"OUT": np.repeat(mask.sum(axis=1, keepdims=True), 2, axis=1).astype(np.float32)}

    def run_requests(self, requests: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.hold.set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def entry(folder: Path, config: ModelConfig | None = None) -> ModelEntry:
    return ModelEntry("m", folder, config or text_model(), {}, ("1",))


def made(instances: list[Counting]) -> Callable[[InstanceSource], Counting]:
    def make(_source: InstanceSource) -> Counting:
        instances.append(Counting())
        return instances[-1]

    return make


def texts(*values: str | bytes) -> dict[str, np.ndarray]:
    """A request of a text per row."""
    return {"text": np.array([v if isinstance(v, bytes) else v.encode() for v in values], object)}


async def test_texts_and_ids_of_one_length_run_together(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    instances: list[Counting] = []
    async with running(memory_broker, entry(folder), make=made(instances)):
        ids = {"input_ids": np.array([[2, 4, 3]]), "attention_mask": np.array([[1, 1, 1]])}
        answers = await requester.all(requester.send("m", [texts("a"), ids, texts("river")]))
        assert [answer.arrays["OUT"].tolist() for answer in answers] == [[[3, 3]]] * 3
        assert [answer.head.parameters for answer in answers] == [{"num_tokens": 3}, {}, {"num_tokens": 3}]
        assert instances[0].shapes == [(3, 3)]


async def test_short_texts_are_not_padded_to_a_long_one(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    instances: list[Counting] = []
    async with running(memory_broker, entry(folder), make=made(instances)):
        sent = [texts("a " * 98)] + [texts("a")] * 5
        answers = await requester.all(requester.send("m", sent))
        assert [answer.arrays["OUT"][0, 0] for answer in answers] == [100, 3, 3, 3, 3, 3]
        assert sorted(instances[0].shapes) == [(1, 100), (5, 3)]


async def test_a_bad_text_is_refused_and_its_mates_are_answered(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    config = text_model(max_tokens="5", truncation="none")
    async with running(memory_broker, entry(folder, config), make=made([])):
        wrong_id = {"input_ids": np.array([[99]]), "attention_mask": np.array([[1]])}
        sent = [texts("a"), texts(b"\xff"), texts("a", "a a a a"), wrong_id, texts("a river")]
        answers = await requester.all(requester.send("m", sent))
        assert [answer.code for answer in answers] == ["", "invalid-input", "text-too-long", "invalid-input", ""]
        assert "row 1" in answers[2].head.message
        assert "id 99" in answers[3].head.message


async def test_a_long_text_is_answered_and_cancelled_like_any_other(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    instances: list[Counting] = []
    async with running(memory_broker, entry(folder), make=made(instances)) as w:
        (first,) = requester.send("m", [texts(LONG)])
        answer = await requester.answer(first)
        assert answer.arrays["OUT"][0, 0] == 2 * INLINE_BYTES + 2
        instances[0].hold.clear()
        (running_id,) = requester.send("m", [texts(LONG)])
        await w.until(lambda: len(instances[0].shapes) == 2)
        (waiting,) = requester.send("m", [texts(LONG)])
        await w.until(lambda: len(w.worker.desk.open) == 2)
        requester.cancel(waiting)
        await w.until(lambda: len(w.worker.desk.open) == 1)
        instances[0].hold.set()
        assert (await requester.answer(running_id)).code == ""
        assert len(instances[0].shapes) == 2


async def test_redelivered_texts_are_tokenised_and_run_alone(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    taken = asyncio.Event()

    def hand_back(delivery: Delivery) -> int:
        delivery.nak()
        taken.set()
        return 0

    transport = requester.transport
    lane = await transport.open_lane(LaneAddress("default", "m", "any", "norm"), transport.row_window(8), hand_back)
    ids = requester.send("m", [texts("a"), texts(b"\xff"), texts("a river"), texts(LONG)])
    async with asyncio.timeout(WAIT_S):
        await taken.wait()
    await lane.stop()
    instances: list[Counting] = []
    async with running(memory_broker, entry(folder), make=made(instances)):
        answers = await requester.all(ids)
        assert [answer.code for answer in answers] == ["", "invalid-input", "", ""]
        assert sorted(instances[0].shapes) == [(1, 3), (1, 4), (1, 2 * INLINE_BYTES + 2)]


async def test_a_draining_worker_finishes_the_texts_it_has_begun(
    memory_broker: MemoryBroker, requester: Requester, folder: Path
) -> None:
    async with running(memory_broker, entry(folder), make=made([])) as w:
        ids = requester.send("m", [texts(LONG) for _ in range(8)])
        await w.until(lambda: len(w.worker.desk.open) == 8 or len(requester.answers) > 0)
    answers = await requester.all(ids)
    assert [answer.code for answer in answers] == [""] * 8


async def test_a_tokenizer_that_is_not_there_is_the_versions_reason(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with running(memory_broker, entry(tmp_path), make=made([])) as w:
        beat = await w.beat(lambda b: state_of(b) == "UNAVAILABLE")
        (state,) = beat.models[0].versions
        assert "'tokenizer.json'" in state.reason
