"""The small parts of a worker: gate, jobs, pace, threads, the loop's watch, warm-up, blocks."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from contract.errors import InvalidInput
from contract.messages import Layout, RequestHead, RequestMessage, TensorHead
from contract.model_config import DynamicBatching, ModelConfig, QueuePolicy, TensorSpec
from tests.support.batcher_kit import make_config
from workers.blocks import (
    Block,
    UnfitOutput,
    deadlines_ms,
    is_block_model,
    join_inputs,
    join_outputs,
    result_layout,
    take_joinable,
)
from workers.checks import LayoutChecks
from workers.gate import Gate
from workers.jobs import NUM_SLOW_RUNS, Job, Jobs, Pace
from workers.lanes import has_queue_limit, window_rows
from workers.loopwatch import EXIT_CODE, watch_loop
from workers.threads import Failure, JobThread
from workers.warmup import configured_runs, zero_run

WAIT_S = 20.0

# ------------------------------------------------------------------ gate


async def test_a_suspect_waits_until_nothing_runs_and_nothing_starts_meanwhile() -> None:
    gate, opened = Gate(), []
    gate.on_open(lambda: opened.append(1))
    gate.enter()
    closing = asyncio.create_task(gate.close())
    await asyncio.sleep(0)
    assert not gate.is_open
    assert not closing.done()
    gate.leave()
    await asyncio.wait_for(closing, WAIT_S)
    assert not gate.is_open
    gate.open()
    assert gate.is_open
    assert opened == [1]


async def test_a_suspect_that_gives_up_waiting_opens_the_gate_again() -> None:
    gate, opened = Gate(), []
    gate.on_open(lambda: opened.append(1))
    gate.enter()
    closing = asyncio.create_task(gate.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert gate.is_open
    assert opened == [1]


# ------------------------------------------------------------------ jobs


def job() -> Job:
    return Job(None, [])  # type: ignore[arg-type]


def test_jobs_are_settled_as_they_end() -> None:
    jobs, first, second = Jobs(is_ordered=False), job(), job()
    jobs.start(first)
    jobs.start(second)
    assert jobs.end(second, []) == [second]
    assert jobs.end(first, []) == [first]
    assert not jobs


def test_with_preserve_ordering_jobs_are_settled_in_the_order_of_their_start() -> None:
    jobs, first, second, third = Jobs(is_ordered=True), job(), job(), job()
    for one in (first, second, third):
        jobs.start(one)
    assert jobs.end(third, []) == []
    assert jobs.end(first, []) == [first]
    assert jobs.end(second, []) == [second, third]


def test_a_model_leaves_the_loop_after_several_slow_runs_in_a_row() -> None:
    pace = Pace(0.0001, 0.0002)
    assert pace.is_tiny
    moves = [pace.note(0.01) for _ in range(NUM_SLOW_RUNS - 1)]
    assert not pace.note(0.0001)
    moves += [pace.note(0.01) for _ in range(NUM_SLOW_RUNS)]
    assert moves == [False] * (2 * NUM_SLOW_RUNS - 2) + [True]
    assert not pace.is_tiny


def test_a_model_without_a_measured_run_or_with_a_long_one_never_runs_in_the_loop() -> None:
    assert not Pace(None, 0.0002).is_tiny
    assert not Pace(0.0002, 0.0002).is_tiny


# ------------------------------------------------------------------ threads


async def test_a_job_runs_in_its_thread_and_its_outcome_comes_back_to_the_loop() -> None:
    thread = JobThread("t-1")
    assert await thread.call(lambda: threading.current_thread().name) == "t-1"
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0)
    thread.close()


async def test_an_abandoned_threads_late_outcome_is_dropped() -> None:
    thread, hold, outcomes = JobThread("t-2"), threading.Event(), []
    thread.submit(lambda: hold.wait(WAIT_S), outcomes.append)
    thread.abandon()
    hold.set()
    async with asyncio.timeout(WAIT_S):
        for _ in range(10_000):
            if not thread.is_busy:
                break
            await asyncio.sleep(0.001)
    assert not thread.is_busy
    assert outcomes == []


async def test_a_failure_is_told_with_its_error() -> None:
    thread, ended = JobThread("t-3"), asyncio.Event()
    outcomes: list[object] = []
    thread.submit(lambda: 1 // 0, lambda outcome: (outcomes.append(outcome), ended.set()))
    await asyncio.wait_for(ended.wait(), WAIT_S)
    assert isinstance(outcomes[0], Failure)
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    thread.close()


# ------------------------------------------------------------------ the loop's watch


async def test_a_loop_that_hangs_for_good_ends_the_process(monkeypatch) -> None:
    monkeypatch.setattr("workers.loopwatch.TICK_S", 0.02)
    ended = threading.Event()
    codes: list[int] = []

    def exit_process(code: int) -> None:
        codes.append(code)
        ended.set()

    unwatch = watch_loop(lambda: 0.1, exit_process=exit_process)
    await asyncio.sleep(0)
    assert ended.wait(WAIT_S)  # the loop hangs meanwhile, which is the point
    unwatch()
    assert codes == [EXIT_CODE]


async def test_a_loop_that_turns_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr("workers.loopwatch.TICK_S", 0.01)
    codes: list[int] = []
    unwatch = watch_loop(lambda: 5.0, exit_process=codes.append)
    for _ in range(20):
        await asyncio.sleep(0.005)
    unwatch()
    assert codes == []


# ------------------------------------------------------------------ warm-up

OPEN = ModelConfig(
    "m",
    "python",
    max_batch_size=4,
    inputs=(
        TensorSpec("A", "FP32", (2, -1)),
        TensorSpec("T", "BYTES", (1,)),
        TensorSpec("O", "FP32", (1,), is_optional=True),
    ),
)


def test_zeros_have_one_row_and_size_one_where_dims_are_open() -> None:
    inputs = zero_run(OPEN).inputs
    assert inputs["A"].shape == (1, 2, 1)
    assert inputs["T"].tolist() == [[b""]]
    assert "O" not in inputs


def test_a_configured_warm_up_takes_its_shapes_data_and_count(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "a.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    triton = {
        "model_warmup": [
            {
                "name": "w",
                "batch_size": 2,
                "count": 3,
                "inputs": {
                    "A": {"dims": ["2", "3"], "input_data_file": "a.bin"},
                    "T": {"dims": ["1"], "random_data": True},
                },
            }
        ]
    }
    (run,) = configured_runs(OPEN, triton, tmp_path)
    assert run.count == 3
    assert run.inputs["A"].reshape(-1).tolist() == list(range(12))
    assert run.inputs["T"].shape == (2, 1)
    assert all(isinstance(e, bytes) for e in run.inputs["T"].reshape(-1))


def test_a_warm_up_of_an_unknown_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'X'"):
        configured_runs(OPEN, {"model_warmup": [{"inputs": {"X": {"dims": ["1"]}}}]}, Path("nowhere"))


# ------------------------------------------------------------------ blocks

TWO = make_config(
    inputs=(TensorSpec("IN", "FP32", (2,)), TensorSpec("K", "INT64", (1,))),
    outputs=(TensorSpec("OUT", "FP32", (2,)), TensorSpec("K", "INT64", (1,))),
)
LAYOUT = Layout((TensorHead("IN", "FP32", (1, 2)), TensorHead("K", "INT64", (1, 1))))


def head(number: int, **fields) -> RequestHead:
    fields = {"layout": 0, "rows": 1, "deadline_unix_ms": 1_000 + number, "admitted_unix_us": 0, **fields}
    return RequestHead(id=number, **fields)


def block(*numbers: int, layout: Layout = LAYOUT) -> Block:
    body = b"".join(np.full(2, n, np.float32).tobytes() + np.int64(n).tobytes() for n in numbers)
    message = RequestMessage("g", "inbox", "m", "", [layout], [head(n) for n in numbers])
    return Block(None, message, LayoutChecks(TWO).check(layout), memoryview(body), len(numbers), 1, 1)  # type: ignore[arg-type]


def test_blocks_are_joined_row_by_row_and_split_again() -> None:
    inputs = join_inputs([block(1, 2), block(3)])
    assert inputs["IN"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert inputs["K"].tolist() == [[1], [2], [3]]
    assert inputs["K"].flags.aligned
    shapes, body = join_outputs(TWO, {"OUT": inputs["IN"] * 2, "K": inputs["K"]}, 3, 1)
    layout = result_layout({}, TWO, shapes)
    assert layout.tensors == (TensorHead("OUT", "FP32", (1, 2)), TensorHead("K", "INT64", (1, 1)))
    first = np.full(2, 2, np.float32).tobytes() + np.int64(1).tobytes()
    assert body[: len(first)] == first
    assert len(body) == 3 * len(first)


def test_a_block_of_one_request_is_joined_and_split_like_many() -> None:
    inputs = join_inputs([block(7)])
    assert {name: array.tolist() for name, array in inputs.items()} == {"IN": [[7, 7]], "K": [[7]]}
    assert all(array.flags.aligned and array.flags.writeable for array in inputs.values())
    strided = np.repeat(inputs["IN"], 2, axis=1)[:, ::2]
    shapes, body = join_outputs(TWO, {"OUT": strided, "K": inputs["K"]}, 1, 1)
    assert shapes == ((1, 2), (1, 1))
    assert body == np.full(2, 7, np.float32).tobytes() + np.int64(7).tobytes()


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"OUT": np.zeros((3, 2), np.float64), "K": np.zeros((3, 1), np.int64)},
        {"OUT": np.zeros((2, 2), np.float32), "K": np.zeros((3, 1), np.int64)},
        {"OUT": np.zeros(3, np.float32), "K": np.zeros((3, 1), np.int64)},
    ],
)
def test_an_answer_that_does_not_fit_the_config_takes_the_ordinary_way(outputs) -> None:
    with pytest.raises(UnfitOutput):
        join_outputs(TWO, outputs, 3, 1)


def test_blocks_run_together_up_to_the_most_rows_and_only_if_alike() -> None:
    assert take_joinable([block(1, 2), block(3), block(4)], 4) == 3
    assert take_joinable([block(1, 2), block(3, 4), block(5)], 3) == 1
    assert take_joinable([block(1, 2)], 1) == 1
    other = Layout((TensorHead("K", "INT64", (1, 1)), TensorHead("IN", "FP32", (1, 2))))
    assert take_joinable([block(1), block(2, layout=other)], 8) == 1


@pytest.mark.parametrize(
    "wish",
    [{"layout": 1}, {"rows": 2}, {"attempt": 1}, {"outputs": ("OUT",)}, {"sizes": (8, 8)}, {"parameters": {"a": 1}}],
)
def test_a_request_with_a_wish_of_its_own_is_not_plain(wish) -> None:
    assert deadlines_ms([head(1), head(2, **wish)], 1) == (0, 0)
    assert deadlines_ms([head(5), head(2), head(9)], 1) == (1_002, 1_009)


def test_only_models_without_queue_rules_take_blocks() -> None:
    assert is_block_model(TWO)
    assert not is_block_model(make_config(batching=None))
    assert not is_block_model(make_config(batching=DynamicBatching(max_queue_delay_us=1)))
    assert not is_block_model(make_config(batching=DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=1))))
    assert not is_block_model(make_config(inputs=(TensorSpec("T", "BYTES", (1,)),)))
    assert not is_block_model(make_config(may_retry=False))


# ------------------------------------------------------------------ windows


def test_a_window_is_two_micro_batches_per_instance_or_an_eager_models_queue() -> None:
    assert window_rows(make_config(max_batch_size=8)) == 16
    assert window_rows(make_config(max_batch_size=0)) == 2
    eager = make_config(max_batch_size=8, batching=DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=10)))
    assert window_rows(eager) >= 18
    assert has_queue_limit(eager)
    ordered = make_config(batching=DynamicBatching(preserve_ordering=True))
    assert window_rows(ordered) == 1_024
    assert not has_queue_limit(ordered)
