"""A worker for the gateway's tests: real heartbeats, real lanes, answers what the test tells it to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from contract.envelope import pack, unpack
from contract.errors import HeadraceError
from contract.messages import (
    CancelMessage,
    Layout,
    ReplyMessage,
    RequestHead,
    RequestMessage,
    ResultHead,
    TensorHead,
    WorkerBeat,
)
from contract.model_config import ModelCard
from contract.streams import BrokerLimits, blob_stream, online_stream
from contract.subjects import ASK_BEATS, LANES, LaneAddress, alive_subject, cancel_subject, worker_beat_subject
from transport.base import Delivery, Lane, Subscription, Transport

WITHIN_S = 10.0


async def eventually(claim: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until `claim` (sync or async) is true."""
    async with asyncio.timeout(within_s):
        while True:
            found = claim()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


@dataclass
class Received:
    """One message a worker pulled."""

    delivery: Delivery
    message: RequestMessage
    body: memoryview


class LaneWorker:
    """Serves one model. `echoes`: it answers at once with the request's own tensors as `y`."""

    def __init__(
        self,
        transport: Transport,
        card: ModelCard,
        *,
        group: str = "default",
        echoes: bool = True,
        limits: BrokerLimits | None = None,
    ) -> None:
        self.transport = transport
        self.card = card
        self.group = group
        self.echoes = echoes
        self.limits = limits or BrokerLimits()
        self.received: list[Received] = []
        self.cancelled: set[int] = set()
        self.state = "serving"
        self.worker = f"w-{transport.name}-{card.config.name}"
        self._lanes: list[Lane] = []
        self._subscriptions: list[Subscription] = []

    async def start(self) -> LaneWorker:
        model = self.card.config.name
        subscribe = self.transport.subscribe
        await self.transport.ensure_stream(online_stream(self.group, self.limits))
        await self.transport.ensure_stream(blob_stream(self.limits))
        self._subscriptions = [
            await subscribe(alive_subject(self.group, model), lambda _s, reply, _p: self.transport.reply(reply, b"")),
            await subscribe(cancel_subject(self.group), self._on_cancel),
            await subscribe(ASK_BEATS, lambda _s, _r, _p: self.beat()),
        ]
        window = self.transport.row_window(1024)
        for version in ("any", *self.card.ready_versions):
            for lane in LANES:
                address = LaneAddress(self.group, model, version, lane)
                self._lanes.append(await self.transport.open_lane(address, window, self._on_delivery))
        self.beat()
        return self

    def beat(self) -> None:
        beat = WorkerBeat(self.worker, self.group, 1, "0", "host", 1, self.state, [self.card])
        self.transport.publish(worker_beat_subject(self.group, self.worker), pack(beat))

    async def stop(self) -> None:
        for lane in self._lanes:
            await lane.stop()
        for subscription in self._subscriptions:
            await subscription.unsubscribe()

    def num_requests(self) -> int:
        return sum(len(r.message.requests) for r in self.received)

    def _on_cancel(self, _subject: str, _reply: str, payload: bytes) -> None:
        message, _ = unpack(CancelMessage, payload)
        self.cancelled.update(message.ids)

    def _on_delivery(self, delivery: Delivery) -> int:
        message, body = unpack(RequestMessage, delivery.payload)
        received = Received(delivery, message, body)
        self.received.append(received)
        if self.echoes:
            self.echo(received)
            delivery.ack()
            return 0
        return len(message.requests)

    def echo(self, received: Received) -> None:
        """Answer every request of the message with its own tensors, renamed `y`."""
        message = received.message
        layouts = [Layout(tuple(TensorHead("y", t.datatype, t.shape) for t in la.tensors)) for la in message.layouts]
        heads = [ResultHead(h.id, h.layout, h.sizes, queue_us=1, compute_us=2, batch_rows=9) for h in message.requests]
        reply = ReplyMessage(self.worker, message.model, "1", layouts, heads)
        self.transport.reply(message.reply, pack(reply, [received.body]))

    def fail(self, received: Received, error: HeadraceError) -> None:
        """Answer every request of the message with an error."""
        message = received.message
        heads = [ResultHead(h.id, code=error.code, message=error.message) for h in message.requests]
        self.transport.reply(message.reply, pack(ReplyMessage(self.worker, message.model, "1", [], heads)))

    async def answer_with_blob(self, received: Received, head: RequestHead, layout: Layout, data: bytes) -> None:
        """Answer one request by reference."""
        ref = await self.transport.put_blob(self.worker, [data])
        reply = ReplyMessage(self.worker, received.message.model, "1", [layout], [ResultHead(head.id, 0, blob=ref)])
        self.transport.reply(received.message.reply, pack(reply))
