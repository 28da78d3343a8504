"""A real worker on the in-process broker: how it batches, answers, refuses and replaces."""

import time

import numpy as np
import pytest
from structlog.testing import capture_logs

from contract.errors import ModelFailed
from contract.model_config import DynamicBatching, InstanceGroup, QueuePolicy, TensorSpec, VersionState
from tests.support.requester import Requester
from tests.support.worker_kit import Double, double_config, entry, row, running, state_of
from transport.memory import MemoryBroker


@pytest.mark.parametrize("inline", [True, False])
async def test_requests_of_one_message_are_answered_in_one_reply(memory_broker, requester, inline: bool) -> None:
    async with running(memory_broker, entry(double_config()), inline=inline) as w:
        ids = requester.send("m", [row(i) for i in range(1, 6)])
        answers = await requester.all(ids)
        assert [a.arrays["OUT"].tolist() for a in answers] == [[[2.0 * i, 2.0 * i]] for i in range(1, 6)]
        assert {a.num_in_message for a in answers} == {5}
        assert {(a.version, a.head.batch_rows) for a in answers} == {("1", 5)}
        assert w.model().rows == [5]


async def test_a_tiny_model_runs_in_the_loop_and_joins_messages_of_one_tick(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config()), inline=True) as w:
        ids = [i for n in (1, 2) for i in requester.send("m", [row(n), row(n), row(n)])]
        await requester.all(ids)
        assert set(w.model().threads) == {"MainThread"}
        assert sum(w.model().rows) == 6


async def test_other_models_run_in_a_thread_per_instance(memory_broker, requester) -> None:
    config = double_config(instance_groups=(InstanceGroup(2),))
    async with running(memory_broker, entry(config)) as w:
        for i in (0, 1):
            w.model(index=i).hold.clear()
        ids = [i for n in (1, 2) for i in requester.send("m", [row(n)])]
        await w.until(lambda: all(w.model(index=i).started.is_set() for i in (0, 1)))
        for i in (0, 1):
            w.model(index=i).hold.set()
        await requester.all(ids)
        assert {t for i in (0, 1) for t in w.model(index=i).threads} == {"m-1-0", "m-1-1"}


async def test_the_next_micro_batch_forms_while_one_runs(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        rest = [i for n in (2, 3, 4) for i in requester.send("m", [row(n)])]
        await w.until(lambda: len(w.worker.desk.open) == 4)
        w.model().hold.set()
        await requester.all(first + rest)
        assert w.model().rows == [1, 3]


async def test_a_failing_row_fails_alone(memory_broker, requester) -> None:
    def refuse(array: np.ndarray) -> None:
        if (array[:, 0] == 666).any():
            raise ModelFailed("row 666 is not liked")

    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with capture_logs() as events:
        async with running(memory_broker, entry(double_config())) as w:
            w.model().on_run = refuse
            answers = await requester.all(requester.send("m", [row(1), row(666), row(2)], traceparent=parent))
    assert [a.code for a in answers] == ["", "model-failed", ""]
    assert answers[2].arrays["OUT"].tolist() == [[4.0, 4.0]]
    (line,) = [event for event in events if event["event"] == "execution-failed"]
    assert (line["code"], line["traceparent"]) == ("model-failed", parent)
    assert (line["request_id"], line["caller_id"]) == (f"r{answers[1].head.id}", str(answers[1].head.id))
    assert "666" not in str(line)


async def test_a_failing_row_fails_alone_in_a_block_of_a_tiny_model(memory_broker, requester) -> None:
    def refuse(array: np.ndarray) -> None:
        if (array[:, 0] == 666).any():
            raise RuntimeError("row 666 is not liked")

    async with running(memory_broker, entry(double_config()), inline=True) as w:
        w.model().on_run = refuse
        answers = await requester.all(requester.send("m", [row(1), row(666), row(2)]))
        assert [a.code for a in answers] == ["", "model-failed", ""]


async def test_requests_without_a_version_run_on_the_highest_ready_one(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config(), "9", "10")) as w:
        (free,) = await requester.all(requester.send("m", [row(1)]))
        (pinned,) = await requester.all(requester.send("m", [row(2)], version="9"))
        assert (free.version, pinned.version) == ("10", "9")
        assert w.model(version="10").seen == [1.0]
        assert w.model(version="9").seen == [2.0]


async def test_the_hi_lane_is_served_too(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())):
        (answer,) = await requester.all(requester.send("m", [row(1)], lane="hi"))
        assert answer.code == ""


async def test_a_full_queue_refuses_at_once_while_the_model_is_busy(memory_broker, requester) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2))
    async with running(memory_broker, entry(double_config(max_batch_size=1, batching=batching))) as w:
        w.model().hold.clear()
        running_id = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        waiting = [i for n in (2, 3) for i in requester.send("m", [row(n)])]
        (refused,) = await requester.all(requester.send("m", [row(4)]))
        assert refused.code == "queue-full"
        w.model().hold.set()
        assert [a.code for a in await requester.all(running_id + waiting)] == [""] * 3


async def test_a_queue_time_out_is_exact_while_the_model_is_busy(memory_broker, requester) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(default_timeout_us=100_000))
    async with running(memory_broker, entry(double_config(max_batch_size=1, batching=batching))) as w:
        w.model().hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        sent_s = time.monotonic()
        (late,) = await requester.all(requester.send("m", [row(2)]))
        assert late.code == "queue-timeout"
        assert 0.09 < time.monotonic() - sent_s < 0.5
        w.model().hold.set()
        await requester.all(first)


async def test_preserve_ordering_answers_in_order_of_arrival(memory_broker, requester) -> None:
    batching = DynamicBatching(preserve_ordering=True)
    config = double_config(max_batch_size=1, batching=batching, instance_groups=(InstanceGroup(2),))
    async with running(memory_broker, entry(config)) as w:
        slow, fast = w.model(index=0), w.model(index=1)
        slow.hold.clear()
        fast.hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(lambda: slow.started.is_set() or fast.started.is_set())
        if fast.started.is_set():
            slow, fast = fast, slow
        second = requester.send("m", [row(2)])
        await w.until(fast.started.is_set)
        fast.hold.set()
        seats = w.worker.models["m"].resolve("1").seats
        await w.until(lambda: any(seat.is_idle for seat in seats))  # the second has ended, and may not overtake
        assert requester.answers == {}
        slow.hold.set()
        await requester.all(first + second)
        assert list(requester.answers) == first + second


async def test_a_model_that_does_not_return_is_told_on_and_its_instance_replaced(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config(max_execution_s=0.3))) as w:
        w.model().hold.clear()
        (late,) = await requester.all(requester.send("m", [row(1)]))
        assert late.code == "execution-timeout"
        (answer,) = await requester.all(requester.send("m", [row(2)]))
        assert answer.arrays["OUT"].tolist() == [[4.0, 4.0]]
        assert len(w.instances["m", "1"]) == 2
        w.model().hold.set()


async def test_mates_of_a_request_that_hangs_get_their_answers(memory_broker, requester) -> None:
    def make(_source) -> Double:
        model = Double()

        def hang(array: np.ndarray) -> None:
            if (array[:, 0] == 13).any():
                model.hold.clear()
                assert model.hold.wait(20)

        model.on_run = hang
        return model

    async with running(memory_broker, entry(double_config(max_execution_s=0.3)), make=make) as w:
        answers = await requester.all(requester.send("m", [row(1), row(2), row(13)]))
        assert [a.code for a in answers] == ["", "", "execution-timeout"]
        # Two threads are left behind: the worker gives up and lets its pool start another.
        await w.until(w.worker.stop.is_set)
        assert w.worker.exit_code != 0


async def test_a_failed_load_is_told_and_hurts_nobody_else(memory_broker, requester) -> None:
    def make(source):
        if source.config.name == "broken":
            raise RuntimeError("no such layer")
        return Double()

    entries = [entry(double_config("broken")), entry(double_config())]
    async with running(memory_broker, *entries, make=make) as w:
        beat = await w.beat(lambda b: state_of(b, "broken") == "UNAVAILABLE" and state_of(b) == "READY")
        states = {c.config.name: c.versions for c in beat.models}
        assert states["broken"] == (VersionState("1", "UNAVAILABLE", "no such layer"),)
        assert (await requester.all(requester.send("m", [row(1)])))[0].code == ""


async def test_a_slow_load_does_not_hold_the_others_up(memory_broker, requester) -> None:
    slow = Double()

    def make(source):
        if source.config.name == "slow":
            slow.started.set()
            assert slow.hold.wait(20)
        return Double()

    slow.hold.clear()
    async with running(
        memory_broker, entry(double_config("slow")), entry(double_config()), make=make, wait_for=["m"]
    ) as w:
        beat = await w.beat(lambda b: state_of(b) == "READY")
        assert state_of(beat, "slow") == "LOADING"
        assert (await requester.all(requester.send("m", [row(1)])))[0].code == ""
        slow.hold.set()
        await w.beat(lambda b: state_of(b, "slow") == "READY")


async def test_one_version_that_fails_leaves_the_other_serving(memory_broker, requester) -> None:
    def make(source):
        if source.version == "2":
            raise RuntimeError("half a file")
        return Double()

    async with running(memory_broker, entry(double_config(), "2", "1"), make=make) as w:
        beat = await w.beat(lambda b: state_of(b) == "READY")
        assert state_of(beat, version="2") == "UNAVAILABLE"
        assert (await requester.all(requester.send("m", [row(1)])))[0].version == "1"


async def test_counters_count_as_triton_does(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        await requester.all(requester.send("m", [row(1, rows=3), row(2)]))
        (bad,) = await requester.all(requester.send("m", [{"IN": np.ones((1, 3), np.float32)}]))
        assert bad.code == "invalid-input"
        beat = await w.beat(lambda b: bool(b.stats) and b.stats[0].num_success == 2)
        (stats,) = beat.stats
        assert (stats.num_inferences, stats.num_executions, stats.rows_per_execution) == (4, 1, {4: 1})
        assert stats.last_inference_unix_ms > 0
        assert stats.num_instances == 1


async def test_text_goes_through_with_its_sizes(memory_broker, requester) -> None:
    class Echo(Double):
        def run(self, inputs, outputs):
            return {"OUT": inputs["IN"]}

    tensors = {"inputs": (TensorSpec("IN", "BYTES", (1,)),), "outputs": (TensorSpec("OUT", "BYTES", (1,)),)}
    async with running(memory_broker, entry(double_config(**tensors)), make=lambda _s: Echo()):
        texts = ["plain", "naïve", "日本語", ""]
        ids = requester.send("m", [{"IN": np.array([[t.encode()]], object)} for t in texts])
        answers = await requester.all(ids)
        assert [a.arrays["OUT"][0, 0].decode() for a in answers] == texts


async def test_answers_over_the_brokers_limit_are_split_and_single_ones_go_by_reference() -> None:
    broker = MemoryBroker(max_payload=4_096)
    transport = await broker.connect("gateway")
    requester = await Requester(transport).start()

    class Grow(Double):
        def run(self, inputs, outputs):
            return {"OUT": np.repeat(inputs["IN"], int(inputs["IN"].max()) or 1, axis=1)}

    config = double_config(outputs=(TensorSpec("OUT", "FP32", (-1,)),))
    async with running(broker, entry(config), make=lambda _s: Grow()):
        small = await requester.all(requester.send("m", [row(200), row(200), row(200), row(200)]))
        assert [a.arrays["OUT"].shape for a in small] == [(1, 400)] * 4
        assert max(a.num_in_message for a in small) < 4
        (large,) = await requester.all(requester.send("m", [row(5_000)]))
        assert large.head.blob is not None
        assert large.arrays["OUT"].shape == (1, 10_000)
    await transport.close()
