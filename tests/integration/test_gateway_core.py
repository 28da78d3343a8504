"""The gateway's core against a broker and workers that pull lanes: the ordinary day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from contract.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    HeadraceError,
    ModelFailed,
    NoWorker,
    QueueFull,
    TooLarge,
)
from contract.messages import Layout, TensorHead
from contract.principal import DEFAULT_PRINCIPAL
from contract.streams import BrokerLimits, lane_consumer
from contract.subjects import BLOB_STREAM, LaneAddress
from gateway.core import Answer, Outcome
from tests.support.gateway_day import WITHIN_S, GatewayDay, answer, ask
from tests.support.gateway_kit import EAGER, card, infer_request
from tests.support.lane_worker import eventually
from tests.support.transports import Transports


@pytest.fixture
async def day(transports: Transports) -> AsyncIterator[GatewayDay]:
    async with AsyncExitStack() as stack:
        yield GatewayDay(stack, transports)


async def test_a_request_is_answered_with_its_own_tensors(day: GatewayDay) -> None:
    await day.worker(card())
    gateway = await day.gateway()
    assert gateway.is_ready
    outcome = await answer(gateway, infer_request(b"abcdefgh" * 2))
    assert isinstance(outcome, Answer)
    assert bytes(outcome.data[0]) == b"abcdefgh" * 2
    assert outcome.heads == (TensorHead("y", "FP32", (1, 4)),)
    assert (outcome.model, outcome.version, outcome.batch_rows) == ("tiny", "1", 9)
    assert len(gateway.inflight) == 0


async def test_requests_of_one_tick_share_messages_and_each_hears_its_own(day: GatewayDay) -> None:
    worker = await day.worker(card())
    gateway = await day.gateway()
    requests = [infer_request(bytes([n]) * 16) for n in range(20)]
    outcomes = await asyncio.gather(*(answer(gateway, r) for r in requests))
    assert [bytes(o.data[0]) for o in outcomes if isinstance(o, Answer)] == [bytes([n]) * 16 for n in range(20)]
    assert sorted(len(r.message.requests) for r in worker.received) == [4, 8, 8]


async def test_a_pinned_version_goes_to_its_own_lane(day: GatewayDay) -> None:
    worker = await day.worker(card(versions={"1": "READY", "2": "READY"}))
    gateway = await day.gateway()
    assert isinstance(await answer(gateway, infer_request(), version="2"), Answer)
    assert worker.received[0].delivery.subject == LaneAddress("default", "tiny", "2", "norm").subject
    assert worker.received[0].message.version == "2"


async def test_a_models_error_is_the_callers_error(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    worker.fail(worker.received[0], ModelFailed("it broke"))
    outcome = await heard
    assert isinstance(outcome, ModelFailed)
    assert outcome.message == "it broke"


async def test_a_second_answer_is_counted_and_ignored(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    worker.echo(worker.received[0])
    worker.echo(worker.received[0])
    assert isinstance(await heard, Answer)
    await eventually(lambda: gateway.inflight.num_late_answers == 1)


async def test_a_deadline_is_answered_on_time_whatever_the_worker_does(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    until_s = time.monotonic() + 0.3
    _, heard = ask(gateway, infer_request(deadline_s=until_s))
    await eventually(lambda: worker.received)
    assert isinstance(await heard, DeadlineExceeded)
    assert 0 <= time.monotonic() - until_s < 0.25
    head = worker.received[0].message.requests[0]
    await eventually(lambda: head.id in worker.cancelled)


async def test_a_request_whose_caller_left_is_taken_out_of_the_queue(day: GatewayDay) -> None:
    worker = await day.worker(card())
    gateway = await day.gateway()
    await worker.stop()  # still alive by its heartbeat: the request waits in the stream
    watcher = await day.worker(card("other"))
    pending, heard = ask(gateway, infer_request())
    entry = next(iter(gateway.inflight.entries()))
    await eventually(lambda: entry.message is not None and entry.message.fate == "stored")
    pending.cancel()
    assert isinstance(await heard, Cancelled)
    await eventually(lambda: entry.id in watcher.cancelled)

    async def is_out_of_the_queue() -> bool:
        spec = lane_consumer(entry.lane.address)
        return await watcher.transport.lane_backlog(spec) == (0, 0)

    await eventually(is_out_of_the_queue)
    late = await day.worker(card())
    assert isinstance(await answer(gateway, infer_request()), Answer)
    assert late.num_requests() == 1, "the cancelled request was executed"


async def test_a_cancel_before_the_broker_said_the_sequence_deletes_too(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    pending, heard = ask(gateway, infer_request())
    entry = next(iter(gateway.inflight.entries()))
    await asyncio.sleep(0)  # the flush of this tick publishes, no ack can have come yet
    assert entry.message is not None
    assert entry.message.fate == "sent"
    pending.cancel()
    assert isinstance(await heard, Cancelled)
    await eventually(lambda: gateway.outbox.num_deleted == 1)
    await eventually(lambda: entry.id in worker.cancelled)


async def test_one_cancelled_of_two_leaves_its_mate_in_the_queue(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    pending, _ = ask(gateway, infer_request())
    _, heard = ask(gateway, infer_request(b"mate" * 4))
    await eventually(lambda: worker.received)
    pending.cancel()
    await eventually(lambda: worker.cancelled)
    assert gateway.outbox.num_deleted == 0
    worker.echo(worker.received[0])
    outcome = await heard
    assert isinstance(outcome, Answer)
    assert bytes(outcome.data[0]) == b"mate" * 4


async def test_a_full_queue_refuses_at_once_and_a_free_one_takes_again(day: GatewayDay) -> None:
    worker = await day.worker(
        card("eager", dynamic_batching=EAGER), echoes=False, limits=BrokerLimits(online_max_msgs=3)
    )
    gateway = await day.gateway(broker={"online_max_msgs": 3})
    heard = [ask(gateway, infer_request(), "eager")[1] for _ in range(5)]
    async with asyncio.timeout(WITHIN_S):
        refused = await asyncio.gather(*heard[3:])
    assert [type(o) for o in refused] == [QueueFull, QueueFull]
    assert not any(f.done() for f in heard[:3])
    await eventually(lambda: worker.num_requests() == 3)
    for received in worker.received:
        worker.echo(received)
        received.delivery.ack()
    assert all(isinstance(o, Answer) for o in await asyncio.gather(*heard[:3]))
    worker.echoes = True

    async def is_taken_again() -> bool:
        return isinstance(await answer(gateway, infer_request(), "eager"), Answer)

    await eventually(is_taken_again)


async def test_large_tensors_travel_by_reference_both_ways(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    data = bytes(range(256)) * (5 * 4096)  # 5 MiB
    _, heard = ask(gateway, infer_request(data))
    await eventually(lambda: worker.received)
    head = worker.received[0].message.requests[0]
    assert head.blob is not None
    assert await worker.transport.get_blob(head.blob) == data
    layout = Layout((TensorHead("y", "FP32", (1, len(data) // 4)),))
    await worker.answer_with_blob(worker.received[0], head, layout, data[::-1])
    async with asyncio.timeout(WITHIN_S):
        outcome = await heard
    assert isinstance(outcome, Answer)
    assert bytes(outcome.data[0]) == data[::-1]
    part = f"blob.{head.blob.owner}.{head.blob.blob_id}.0"

    async def is_purged() -> bool:
        return await worker.transport.last_message(BLOB_STREAM, part) is None

    await eventually(is_purged)


async def test_a_payload_over_the_blob_memory_is_refused_with_both_numbers(day: GatewayDay) -> None:
    await day.worker(card(), limits=BrokerLimits(blob_max_bytes=2 * 1024 * 1024))
    gateway = await day.gateway(broker={"blob_max_bytes": 2 * 1024 * 1024})
    outcome = await answer(gateway, infer_request(bytes(3 * 1024 * 1024)))
    assert isinstance(outcome, TooLarge)
    assert str(3 * 1024 * 1024) in outcome.message
    assert str(2 * 1024 * 1024) in outcome.message


async def test_a_header_over_the_brokers_limit_is_refused_and_its_mate_is_not(day: GatewayDay) -> None:
    await day.worker(card())
    gateway = await day.gateway()
    large = infer_request(parameters={"p": "x" * 1_200_000})
    outcomes = await asyncio.gather(answer(gateway, large), answer(gateway, infer_request()))
    assert isinstance(outcomes[0], TooLarge)
    assert "1048576" in outcomes[0].message
    assert isinstance(outcomes[1], Answer)


async def test_a_closed_connection_of_the_last_worker_is_no_worker_within_a_moment(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, accepted = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    await worker.transport.close()  # as a kill -9 would
    gone_s = time.monotonic()

    def is_refused() -> bool:
        try:
            gateway.resolve(DEFAULT_PRINCIPAL, "", "tiny", "")
        except NoWorker:
            return True
        return False

    await eventually(is_refused)
    assert time.monotonic() - gone_s < 3.0
    assert not accepted.done()
    await day.worker(card())
    outcome = await asyncio.wait_for(accepted, WITHIN_S)  # redelivered after ack_wait
    assert isinstance(outcome, Answer)


async def test_a_draining_gateway_finishes_what_it_accepted_and_takes_nothing_new(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    target = gateway.resolve(DEFAULT_PRINCIPAL, "", "tiny", "")
    _, heard = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    draining = asyncio.create_task(gateway.drain(WITHIN_S))
    await eventually(lambda: not gateway.is_ready)
    with pytest.raises(Draining):
        gateway.resolve(DEFAULT_PRINCIPAL, "", "tiny", "")
    refused: list[Outcome] = []
    gateway.submit(target, infer_request(), refused.append)
    assert isinstance(refused[0], Draining)
    worker.echo(worker.received[0])
    assert await draining == 0
    assert isinstance(await heard, Answer)


async def test_what_a_closing_gateway_could_not_finish_is_told_so(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    assert await gateway.drain(0.05) == 1
    await gateway.close()
    assert isinstance(await heard, Draining)
    await eventually(lambda: worker.cancelled)


async def test_gateways_learn_of_each_other_and_of_workers_at_start(day: GatewayDay) -> None:
    await day.worker(card())
    first, second = await day.gateway(), await day.gateway()
    await eventually(lambda: len(first.registry.gateways()) == 2)
    assert {b.gateway for b in first.registry.gateways()} == {first.gateway, second.gateway}
    assert [(g, c.config.name) for g, c in second.models()] == [("default", "tiny")]


async def test_a_starting_worker_is_told_the_open_cancels(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    pending, _ = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    pending.cancel()
    told = await worker.transport.request("cancels.default", b"", WITHIN_S)
    worker._on_cancel("", "", told)
    assert worker.cancelled == {worker.received[0].message.requests[0].id}


async def test_an_unreadable_reply_hurts_only_whom_it_concerns(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    received = worker.received[0]
    worker.transport.reply(received.message.reply, b"garbage")
    await eventually(lambda: gateway.receiver.num_unreadable == 1)
    assert not heard.done()
    received.body = received.body[:-1]
    worker.echo(received)
    outcome = await heard
    assert isinstance(outcome, HeadraceError)
    assert outcome.code == "internal-error"
