"""The gateway's core when the broker goes, comes back, or lost a stream: no request hangs, none is answered twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from contract.errors import BrokerAway, DeadlineExceeded
from contract.messages import TensorHead
from contract.principal import DEFAULT_PRINCIPAL
from contract.subjects import BLOB_STREAM
from gateway import recovery
from gateway.core import Answer
from tests.support.broker import Broker
from tests.support.gateway_day import WITHIN_S, GatewayDay, answer, ask
from tests.support.gateway_kit import card, infer_request
from tests.support.lane_worker import LaneWorker, eventually
from tests.support.transports import MemoryTransports, NatsTransports, Transports
from transport.memory import MemoryBroker


@pytest.fixture
async def day(transports: Transports) -> AsyncIterator[GatewayDay]:
    async with AsyncExitStack() as stack:
        yield GatewayDay(stack, transports)


async def test_requests_open_while_the_broker_restarts_are_published_again(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    asked = [ask(gateway, infer_request(bytes([n]) * 16))[1] for n in range(10)]
    await eventually(lambda: worker.num_requests() == 10)
    worker.received.clear()
    worker.echoes = True
    await day.transports.take_away()
    await eventually(lambda: not gateway.is_ready)
    # One more comes while nobody can be reached: it is held, not refused.
    asked.append(ask(gateway, infer_request(b"\x0a" * 16))[1])
    await day.transports.bring_back()
    async with asyncio.timeout(2 * WITHIN_S):
        outcomes = await asyncio.gather(*asked)
    assert [bytes(o.data[0]) for o in outcomes if isinstance(o, Answer)] == [bytes([n]) * 16 for n in range(11)]
    attempts = {h.attempt for r in worker.received for h in r.message.requests if h.id <= 10}
    assert attempts == {1}
    assert gateway.recovery.num_resent == 11
    assert isinstance(await answer(gateway, infer_request()), Answer)


async def test_a_model_that_must_not_run_twice_is_told_that_the_broker_lost_it(day: GatewayDay) -> None:
    worker = await day.worker(card("once", may_retry=False), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request(), "once")
    await eventually(lambda: worker.received)
    await day.transports.take_away()
    await eventually(lambda: not gateway.is_ready)
    _, held = ask(gateway, infer_request(), "once")
    worker.echoes = True
    await day.transports.bring_back()
    async with asyncio.timeout(2 * WITHIN_S):
        assert isinstance(await heard, BrokerAway)
        assert isinstance(await held, Answer), "it was never published, so it may run"


async def test_deadlines_are_met_and_new_requests_refused_while_the_broker_is_away(day: GatewayDay) -> None:
    await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    _, heard = ask(gateway, infer_request(deadline_s=time.monotonic() + 0.5))
    await day.transports.take_away()
    async with asyncio.timeout(WITHIN_S):
        assert isinstance(await heard, DeadlineExceeded)

    def is_refused() -> bool:
        try:
            gateway.resolve(DEFAULT_PRINCIPAL, "", "tiny", "")
        except BrokerAway:
            return True
        return False

    await eventually(is_refused)
    await day.transports.bring_back()
    await eventually(lambda: gateway.is_ready)


async def test_cancels_told_while_the_broker_was_away_are_told_again(day: GatewayDay) -> None:
    worker = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    pending, _ = ask(gateway, infer_request())
    await eventually(lambda: worker.received)
    await day.transports.take_away()
    await eventually(lambda: not gateway.is_ready)
    pending.cancel()
    await day.transports.bring_back()
    await eventually(lambda: worker.cancelled == {worker.received[0].message.requests[0].id}, 2 * WITHIN_S)


async def test_workers_do_not_die_of_the_gateways_own_absence(day: GatewayDay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "GRACE_S", 60.0)
    await day.worker(card())
    gateway = await day.gateway()
    await day.transports.take_away()
    await eventually(lambda: not gateway.is_ready)
    gateway.registry._workers["w-t0-tiny"].seen_s -= 100
    await asyncio.sleep(0.1)  # two ticks of presence: long enough to bury, were it to
    assert gateway.registry.workers()
    await day.transports.bring_back()
    await eventually(lambda: gateway.is_ready, 2 * WITHIN_S)
    assert gateway.registry.card("default", "tiny") is not None


async def test_a_stream_that_vanished_is_made_again_and_everything_in_it_published_again() -> None:
    kit = MemoryTransports()
    async with AsyncExitStack() as stack:
        day = GatewayDay(stack, kit)
        worker = await day.worker(card(), echoes=False)
        gateway = await day.gateway()
        _, first = ask(gateway, infer_request(b"1" * 16))
        await eventually(lambda: worker.received)
        _broker(kit).lose_streams()
        _, second = ask(gateway, infer_request(b"2" * 16))
        await eventually(lambda: gateway.recovery.num_recoveries == 2)
        worker.echoes = True
        async with asyncio.timeout(WITHIN_S):
            outcomes = await asyncio.gather(first, second)
        assert [bytes(o.data[0]) for o in outcomes if isinstance(o, Answer)] == [b"1" * 16, b"2" * 16]
        attempts = {h.attempt for r in worker.received[1:] for h in r.message.requests}
        assert attempts == {0, 1}, "what was refused was never there: it is no second attempt"
    await kit.close()


async def test_a_burst_larger_than_a_slice_is_published_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SLICE", 7)
    kit = MemoryTransports()
    async with AsyncExitStack() as stack:
        day = GatewayDay(stack, kit)
        worker = await day.worker(card(), echoes=False)
        gateway = await day.gateway()
        asked = [ask(gateway, infer_request(bytes([n]) * 16))[1] for n in range(100)]
        await eventually(lambda: worker.num_requests() == 100)
        worker.received.clear()
        _broker(kit).restart()
        await eventually(lambda: worker.num_requests() == 100)
        ids = [h.id for r in worker.received for h in r.message.requests]
        assert ids == sorted(ids)
        for received in worker.received:
            worker.echo(received)
        assert all(isinstance(o, Answer) for o in await asyncio.gather(*asked))
    await kit.close()


async def test_a_large_request_is_stored_again_after_the_broker_forgot_it() -> None:
    kit = MemoryTransports()
    async with AsyncExitStack() as stack:
        day = GatewayDay(stack, kit)
        worker = await day.worker(card(), echoes=False)
        gateway = await day.gateway()
        data = bytes(range(256)) * 8192  # 2 MiB
        heads = [TensorHead("x", "FP32", (1, len(data) // 4))]
        _, heard = ask(gateway, infer_request(data, heads=heads))
        await eventually(lambda: worker.received)
        _broker(kit).restart()
        await eventually(lambda: len(worker.received) == 2)
        old, new = (r.message.requests[0] for r in worker.received)
        assert old.blob is not None
        assert new.blob is not None
        assert new.blob.blob_id != old.blob.blob_id
        assert await worker.transport.get_blob(new.blob) == data
        worker.fail(worker.received[1], BrokerAway("enough"))
        assert isinstance(await heard, BrokerAway)
        part = f"blob.{new.blob.owner}.{new.blob.blob_id}.0"

        async def is_purged() -> bool:
            return await worker.transport.last_message(BLOB_STREAM, part) is None

        await eventually(is_purged)
    await kit.close()


async def test_an_upload_cut_by_the_broker_is_taken_up_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Broker(tmp_path_factory.mktemp("broker"))
    await server.start()
    kit = NatsTransports(server)
    try:
        async with AsyncExitStack() as stack:
            day = GatewayDay(stack, kit)
            worker = await day.worker(card(), echoes=False)
            gateway = await day.gateway()
            data = bytes(8 * 1024 * 1024)
            with server.pause():
                _, heard = ask(gateway, infer_request(data))
                entry = next(iter(gateway.inflight.entries()))
                await eventually(lambda: entry.is_uploading)
            await server.restart()
            await eventually(lambda: worker.received, 2 * WITHIN_S)
            head = worker.received[0].message.requests[0]
            assert head.blob is not None
            assert len(await worker.transport.get_blob(head.blob)) == len(data)
            worker.fail(worker.received[0], BrokerAway("enough"))
            assert isinstance(await heard, BrokerAway)
    finally:
        await kit.close()
        server.kill()


async def test_a_worker_killed_with_work_in_hand_is_answered_for_by_another(day: GatewayDay) -> None:
    first = await day.worker(card(), echoes=False)
    gateway = await day.gateway()
    asked = [ask(gateway, infer_request(bytes([n]) * 16))[1] for n in range(20)]
    await eventually(lambda: first.num_requests() == 20)
    second = await LaneWorker(await day.transports.make(), card()).start()
    await first.transport.close()
    async with asyncio.timeout(2 * WITHIN_S):
        outcomes = await asyncio.gather(*asked)
    assert [bytes(o.data[0]) for o in outcomes if isinstance(o, Answer)] == [bytes([n]) * 16 for n in range(20)]
    assert second.num_requests() == 20


def _broker(kit: MemoryTransports) -> MemoryBroker:
    return kit.broker
