"""A real worker on the in-process broker: what it refuses, drops, acks, hands back, and runs alone."""

import asyncio
import time

import numpy as np
import pytest
from structlog.testing import capture_logs

from contract.messages import Layout, TensorHead
from contract.streams import lane_consumer, started_stream
from contract.subjects import LaneAddress, started_subject
from tests.support.requester import Requester
from tests.support.worker_kit import WAIT_S, Double, double_config, entry, row, running, state_of
from workers.fences import StartedNote, read_note, write_note


async def backlog(requester: Requester, model: str = "m", version: str = "any") -> tuple[int, int]:
    return await requester.transport.lane_backlog(lane_consumer(LaneAddress("default", model, version, "norm")))


async def until_empty(requester: Requester) -> None:
    async with asyncio.timeout(WAIT_S):
        for _ in range(10_000):
            if await backlog(requester) == (0, 0):
                return
    raise AssertionError(await backlog(requester))


@pytest.mark.parametrize("inline", [True, False])
async def test_a_bad_request_is_refused_alone(memory_broker, requester, inline: bool) -> None:
    async with running(memory_broker, entry(double_config()), inline=inline):
        bad = [
            {"IN": np.ones((1, 3), np.float32)},
            {"WRONG": np.ones((1, 2), np.float32)},
            {"IN": np.ones((1, 2), np.int32)},
            {"IN": np.ones((9, 2), np.float32)},
        ]
        ids = requester.send("m", [row(1), *bad, row(2)])
        answers = await requester.all(ids)
        assert [a.code for a in answers] == ["", *["invalid-input"] * 4, ""]
        assert "'IN'" in answers[1].head.message
        assert answers[5].arrays["OUT"].tolist() == [[4.0, 4.0]]
        await until_empty(requester)


async def test_a_body_too_short_for_its_requests_fails_only_those_it_is_short_for(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())):
        ids = requester.send("m", [row(1), row(2)], body=np.full(3, 1, np.float32).tobytes())
        assert [a.code for a in await requester.all(ids)] == ["", "invalid-input"]


async def test_an_unknown_output_is_refused_by_name(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())):
        (answer,) = await requester.all(requester.send("m", [row(1)], outputs=("NOPE",)))
        assert answer.code == "invalid-input"
        assert "NOPE" in answer.head.message


async def test_bytes_that_are_no_message_are_dropped_and_the_worker_goes_on(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        requester.publish("m", b"\xff\x00 nonsense")
        requester.send("m", [row(1)], layouts=[Layout((TensorHead("IN", "FP32", (-1, 2)),))])
        (answer,) = await requester.all(requester.send("m", [row(3)]))
        assert answer.code == ""
        await until_empty(requester)
        assert w.worker.desk.num_unread_messages == 1


async def test_a_cancelled_request_that_waits_is_never_executed(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        (gone,) = requester.send("m", [row(2)])
        (kept,) = requester.send("m", [row(3)])
        await w.until(lambda: len(w.worker.desk.open) == 3)
        requester.cancel(gone)
        await w.until(lambda: len(w.worker.desk.open) == 2)
        w.model().hold.set()
        await requester.all([*first, kept])
        await until_empty(requester)
        assert w.model().seen == [1.0, 3.0]
        assert gone not in requester.answers


async def test_a_cancel_that_comes_before_its_request_holds(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        requester.cancel(7)
        await w.until(lambda: w.worker._fences.num_cancels == 1)
        requester.send("m", [row(7)], ids=[7])
        await requester.all(requester.send("m", [row(1)], ids=[8]))
        assert w.model().seen == [1.0]


async def test_an_expired_request_is_never_executed(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        requester.send("m", [row(2)], timeout_s=0.1)
        await w.until(lambda: len(w.worker.desk.open) == 2)
        await w.until(lambda: len(w.worker.desk.open) == 1)
        w.model().hold.set()
        await requester.all(first)
        await until_empty(requester)
        assert w.model().seen == [1.0]


async def test_requests_of_a_dead_gateway_are_dropped_and_those_of_others_run(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        first = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        dead = await Requester(requester.transport, name="dead").start()
        waiting = dead.send("m", [row(2)])
        await w.until(lambda: len(w.worker.desk.open) == 2)
        w.worker._fences.hear_self(time.monotonic())
        w.worker._fences.hear("dead", time.monotonic() - 10)
        w.worker.desk.drop_dead(time.monotonic())
        dead.send("m", [row(3)], admitted_unix_us=0)
        dead.send("m", [row(5)], attempt=1)  # it lives again, its heartbeat is on its way
        w.model().hold.set()
        await requester.all(first)
        await requester.all(requester.send("m", [row(4)]))
        await until_empty(requester)
        assert w.model().seen == [1.0, 5.0, 4.0]
        assert waiting[0] not in dead.answers


async def test_a_copy_of_a_request_in_hand_is_not_executed_again(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        ids = requester.send("m", [row(1), row(2)])
        await w.until(w.model().started.is_set)
        requester.send("m", [row(1), row(2)], ids=ids, attempt=1)
        await w.until(lambda: w.worker.desk.num_duplicates == 2)
        w.model().hold.set()
        await requester.all(ids)
        await until_empty(requester)
        assert w.model().seen == [1.0, 2.0]
        assert [len(requester.answers[i]) for i in ids] == [1, 1]


async def test_a_message_is_acked_when_its_last_request_is_answered(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config(batching=None))) as w:
        w.model().hold.clear()
        ids = requester.send("m", [row(1), row(2)])
        await w.until(w.model().started.is_set)
        w.model().started.clear()
        assert await backlog(requester) == (0, 1)
        w.model().on_run = lambda array: w.model().hold.clear()
        w.model().hold.set()
        await requester.answer(ids[0])
        await w.until(w.model().started.is_set)
        w.model().on_run = None
        assert await backlog(requester) == (0, 1)
        w.model().hold.set()
        await requester.answer(ids[1])
        await until_empty(requester)


async def test_a_draining_worker_hands_back_what_has_not_started_and_finishes_what_runs(
    memory_broker, requester
) -> None:
    async with running(memory_broker, entry(double_config())) as first:
        first.model().hold.clear()
        started = requester.send("m", [row(1)])
        await first.until(first.model().started.is_set)
        waiting = requester.send("m", [row(2)])
        await first.until(lambda: len(first.worker.desk.open) == 2)
        first.worker.stop.set()
        await first.until(lambda: len(first.worker.desk.open) == 1)
        async with running(memory_broker, entry(double_config())) as second:
            (other,) = await requester.all(waiting)
            assert other.worker == second.worker.name
            first.model().hold.set()
            (own,) = await requester.all(started)
            assert own.worker == first.worker.name
        assert first.model().seen == [1.0]


async def test_a_draining_worker_runs_the_rest_of_a_message_it_has_begun_so_that_nothing_runs_twice(
    memory_broker, requester
) -> None:
    async with running(memory_broker, entry(double_config(batching=None))) as first:
        first.model().hold.clear()
        begun = requester.send("m", [row(1), row(2)])
        await first.until(first.model().started.is_set)
        untouched = requester.send("m", [row(3)])
        await first.until(lambda: len(first.worker.desk.open) == 3)
        first.worker.stop.set()
        await first.until(lambda: len(first.worker.desk.open) == 2)
        async with running(memory_broker, entry(double_config())) as second:
            (other,) = await requester.all(untouched)
            assert other.worker == second.worker.name
            first.model().hold.set()
            assert {own.worker for own in await requester.all(begun)} == {first.worker.name}
            assert second.model().seen == [3.0]
        assert first.model().seen == [1.0, 2.0]


async def test_a_draining_worker_says_so_and_answers_no_presence(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        started = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        w.worker.stop.set()
        await w.beat(lambda b: b.state == "draining" and state_of(b) == "UNLOADING")
        w.model().hold.set()
        await requester.all(started)


async def test_what_was_lost_in_a_freeze_ends_without_a_word(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        ids = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        hand = w.worker._transport._hand
        hand.lose(list(hand.held))
        w.model().hold.set()
        await w.until(lambda: w.worker.models["m"].is_idle)
        await requester.all(requester.send("m", [row(2)]))
        assert ids[0] not in requester.answers
        memory_broker.advance(2.5)  # the broker gives it to somebody else, here the same worker
        (answer,) = await requester.all(ids)
        assert answer.arrays["OUT"].tolist() == [[2.0, 2.0]]


# ------------------------------------------------------------------ suspects


async def redeliver(requester: Requester, ids_and_values: dict[int, float], **more) -> None:
    """Put a message into the lane, take it once and hand it back, so that the next delivery is its second."""
    transport = requester.transport
    taken = asyncio.Event()

    def hand_back(delivery) -> int:
        delivery.nak()
        taken.set()
        return 0

    lane = await transport.open_lane(LaneAddress("default", "m", "any", "norm"), transport.row_window(8), hand_back)
    requester.send("m", [row(v) for v in ids_and_values.values()], ids=list(ids_and_values), **more)
    async with asyncio.timeout(WAIT_S):
        await taken.wait()
    await lane.stop()


async def note(requester: Requester, request: int) -> StartedNote:
    subject = started_subject("default", requester.name, request)
    return read_note(await requester.transport.last_message(started_stream().name, subject))


async def test_redelivered_requests_run_one_at_a_time_and_are_noted(memory_broker, requester) -> None:
    await redeliver(requester, {1: 1.0, 2: 2.0, 3: 3.0})
    async with running(memory_broker, entry(double_config())) as w:
        await requester.all([1, 2, 3])
        assert w.model().rows == [1, 1, 1]
        await until_empty(requester)
        for i in (1, 2, 3):
            assert await note(requester, i) == StartedNote(1, is_done=True)


async def test_a_suspect_that_was_started_twice_is_poison_and_its_mates_are_answered(memory_broker, requester) -> None:
    subject = started_subject("default", requester.name, 2)
    await requester.transport.put_message(subject, write_note(StartedNote(2)))
    await redeliver(requester, {1: 1.0, 2: 2.0, 3: 3.0})
    with capture_logs() as events:
        async with running(memory_broker, entry(double_config())) as w:
            answers = await requester.all([1, 2, 3])
        assert [a.code for a in answers] == ["", "poison-request", ""]
        (line,) = [event for event in events if event["event"] == "poison-request"]
        assert (line["request_id"], line["caller_id"]) == ("r2", "2")
        assert w.model().seen == [1.0, 3.0]


async def test_a_suspect_that_was_answered_is_not_executed_again(memory_broker, requester) -> None:
    subject = started_subject("default", requester.name, 1)
    await requester.transport.put_message(subject, write_note(StartedNote(1, is_done=True)))
    await redeliver(requester, {1: 1.0, 2: 2.0})
    async with running(memory_broker, entry(double_config())) as w:
        await requester.all([2])
        await until_empty(requester)
        assert w.model().seen == [2.0]


async def test_nothing_else_runs_while_a_suspect_does(memory_broker, requester) -> None:
    def make(source) -> Double:
        model = Double()
        if source.config.name == "m":
            model.hold.clear()
        return model

    await redeliver(requester, {1: 1.0})
    entries = [entry(double_config()), entry(double_config("other"))]
    async with running(memory_broker, *entries, make=make) as w:
        await w.until(w.model().started.is_set)
        (other,) = requester.send("other", [row(5)], ids=[5])
        await w.until(lambda: len(w.worker.desk.open) == 2)
        assert w.model("other").seen == []
        w.model().hold.set()
        await requester.all([1, other])


async def test_a_model_that_must_not_run_twice_answers_a_redelivery_with_instance_died(
    memory_broker, requester
) -> None:
    await redeliver(requester, {1: 1.0})
    async with running(memory_broker, entry(double_config(may_retry=False))) as w:
        (answer,) = await requester.all([1])
        assert answer.code == "instance-died"
        assert w.model().seen == []


# ------------------------------------------------------------------ the broker away


async def test_an_answer_waits_for_the_broker_to_come_back(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())) as w:
        w.model().hold.clear()
        ids = requester.send("m", [row(1)])
        await w.until(w.model().started.is_set)
        memory_broker.disconnect(w.worker._transport)
        w.model().hold.set()
        await w.until(lambda: w.worker.models["m"].is_idle)
        assert w.worker.outbox._runs
        memory_broker.reconnect(w.worker._transport)
        await requester.all(ids)
        await until_empty(requester)


async def test_a_restarted_broker_finds_the_worker_serving_again(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())):
        await requester.all(requester.send("m", [row(1)]))
        memory_broker.restart()
        await requester.start()
        (answer,) = await requester.all(requester.send("m", [row(2)], ids=[99], attempt=1))
        assert answer.arrays["OUT"].tolist() == [[4.0, 4.0]]


async def test_payloads_by_reference_are_fetched_and_missing_ones_refused(memory_broker, requester) -> None:
    async with running(memory_broker, entry(double_config())):
        ref = await requester.transport.put_blob(requester.name, [np.full((1, 2), 4, np.float32).tobytes()])
        (answer,) = await requester.all(requester.send("m", [row(4)], blob=ref))
        assert answer.arrays["OUT"].tolist() == [[8.0, 8.0]]
        requester.transport.purge_blob(ref)
        (gone,) = await requester.all(requester.send("m", [row(4)], blob=ref))
        assert gone.code == "unavailable"
