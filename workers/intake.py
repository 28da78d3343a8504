"""From broker messages to work: each request decoded and checked alone, what nobody waits for dropped. Runs nothing.

    Delivery -> RequestMessage -> per request: expired? cancelled? fits the model? -> WorkItem -> the version's queue
                              `-> all alike and the model is tiny -> one Block

A bad request gets its own error reply and its mates go on. A message on its second delivery is made of suspects.

Invariants: every request of a message leaves its InHand exactly once (tests/integration/test_worker_intake.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from contract.envelope import BadEnvelope, unpack
from contract.errors import Cancelled, DeadlineExceeded, HeadraceError, InstanceDied, InvalidInput, Unavailable
from contract.messages import BlobRef, RequestHead, RequestMessage, ResultHead
from contract.model_config import ModelConfig
from contract.streams import DEAD_AFTER_S
from transport.base import Delivery, StreamGone, TransportError
from workers.blocks import Block, deadlines_ms
from workers.checks import CheckedLayout, LayoutChecks, request_bytes, slice_request
from workers.desk import Desk, VersionQueue
from workers.inhand import InHand, RoomGiver
from workers.items import WorkItem
from workers.replies import Run

FETCH_TIMEOUT_S: Final = 30.0
RETURN_AFTER_S: Final = 0.2
"""Pause before a message that can't be run here now is delivered again."""

log = structlog.get_logger()


@dataclass(slots=True)
class Arrival:
    """One message on its way in."""

    hand: InHand
    message: RequestMessage
    version: str
    """The version that will run it."""
    now_s: float


class Intake:
    """Takes one model's deliveries."""

    def __init__(self, desk: Desk, config: ModelConfig, resolve: Callable[[str], VersionQueue | None]) -> None:
        self._desk = desk
        self._config = config
        self._resolve = resolve
        self._checks = LayoutChecks(config)

    def on_delivery(self, delivery: Delivery, lane: RoomGiver) -> int:
        """Rows that stay in hand."""
        desk = self._desk
        try:
            message, body = unpack(RequestMessage, delivery.payload)
        except BadEnvelope as e:
            desk.num_unread_messages += 1
            log.error("message-not-read", subject=delivery.subject, sequence=delivery.sequence, error=e.message)
            delivery.term()
            return 0
        now_s = desk.now_s()
        if not message.requests or self._is_from_the_dead(message, now_s):
            delivery.ack()
            return 0
        queue = self._resolve(message.version)
        if desk.is_draining or queue is None:
            delivery.nak(RETURN_AFTER_S if queue is None else 0.0)
            return 0
        hand = InHand(delivery, lane, message.reply)
        if queue.takes_blocks and delivery.num_delivered == 1:
            block = self._as_block(hand, message, body, desk.clock.now_ms(now_s))
            if block is not None:
                hand.num_open = len(message.requests)
                queue.offer_block(block)
                return block.rows
        return self._take_each(Arrival(hand, message, queue.version, now_s), body, queue)

    def _is_from_the_dead(self, message: RequestMessage, now_s: float) -> bool:
        """Whether its gateway died after sending it. One that came back may send before its heartbeat is here."""
        since_s = self._desk.fences.dead_since_s(message.gateway, now_s)
        if since_s is None:
            return False
        revived_us = (since_s + DEAD_AFTER_S + self._desk.clock.offset_s) * 1e6
        return not any(head.attempt or head.admitted_unix_us > revived_us for head in message.requests)

    def as_items(self, block: Block, version: str) -> list[WorkItem]:
        """The block's requests one by one, for the ordinary way; they are open from now on."""
        size = block.checked.num_bytes
        arrival = Arrival(block.hand, block.message, version, self._desk.now_s())
        items = [
            self._item(arrival, head, block.checked, block.body[i * size : (i + 1) * size])
            for i, head in enumerate(block.heads)
        ]
        for item in items:
            self._desk.open[item.key] = item
        return items

    def _as_block(self, hand: InHand, message: RequestMessage, body: memoryview, now_ms: int) -> Block | None:
        if len(message.layouts) != 1:
            return None
        checked = self._checks.check(message.layouts[0])
        heads = message.requests
        rows = checked.rows * len(heads)
        if checked.num_bytes <= 0 or rows > self._config.max_batch_size or len(body) != checked.num_bytes * len(heads):
            return None
        fences = self._desk.fences
        if fences.num_cancels and any(fences.is_cancelled(message.gateway, h.id) for h in heads):
            return None
        first_ms, last_ms = deadlines_ms(heads, checked.rows)
        return Block(hand, message, checked, body, rows, first_ms, last_ms) if first_ms > now_ms else None

    def _take_each(self, arrival: Arrival, body: memoryview, queue: VersionQueue) -> int:
        hand, message = arrival.hand, arrival.message
        held_rows, at = 0, 0
        unreadable: HeadraceError | None = None
        checked = [self._checks.check(layout) for layout in message.layouts]
        items: list[WorkItem] = []
        for head in message.requests:
            try:
                if not 0 <= head.layout < len(checked):
                    raise InvalidInput(f"layout {head.layout}, the message has {len(checked)}")
                if unreadable is not None and head.blob is None:
                    raise unreadable
                size = request_bytes(checked[head.layout], head)
            except InvalidInput as e:
                # Where this request's bytes end nobody can say, so what follows in the body can't be read either.
                unreadable = unreadable or e
                held_rows += self._refuse(arrival, head, e)
                continue
            part, at = body[at : at + size], at + size
            if self._is_unwanted(arrival, head):
                continue
            if head.blob is not None:
                held_rows += self._start_fetch(arrival, head, checked[head.layout], head.blob)
                continue
            try:
                item = self._item(arrival, head, checked[head.layout], part)
            except HeadraceError as e:
                held_rows += self._refuse(arrival, head, e)
                continue
            hand.num_open += 1
            held_rows += item.rows
            items.append(item)
        if hand.num_open == 0:
            hand.settle()
        for item in items:
            self._enter(item, hand, queue)
        return held_rows

    def _is_unwanted(self, arrival: Arrival, head: RequestHead) -> bool:
        if self._desk.clock.from_wire_ms(head.deadline_unix_ms) <= arrival.now_s:
            self._desk.num_expired += 1
            self._count(arrival, head, DeadlineExceeded("its deadline passed in the queue"))
            return True
        if self._desk.fences.is_cancelled(arrival.message.gateway, head.id):
            self._desk.num_cancelled += 1
            self._count(arrival, head, Cancelled("its caller left"))
            return True
        return False

    def _count(self, arrival: Arrival, head: RequestHead, error: HeadraceError) -> None:
        """A request that never became an item ended."""
        clock = self._desk.clock
        times_s = head.admitted_unix_us / 1e6 - clock.offset_s, clock.from_wire_ms(head.deadline_unix_ms)
        self._desk.count_failure(self._config.name, arrival.version, error, times_s)

    def _item(self, arrival: Arrival, head: RequestHead, checked: CheckedLayout, data: memoryview) -> WorkItem:
        """Raises InvalidInput when the request does not fit the model."""
        views = slice_request(checked, head, data)
        if head.outputs:
            self._checks.check_outputs(head.outputs, head.classifications)
        clock = self._desk.clock
        return WorkItem(
            key=(arrival.message.gateway, head.id),
            model=self._config.name,
            rows=checked.rows,
            layout=checked.layout,
            data=views,
            deadline_s=clock.from_wire_ms(head.deadline_unix_ms),
            enqueued_s=arrival.now_s,
            admitted_s=head.admitted_unix_us / 1e6 - clock.offset_s,
            version=arrival.version,
            priority=head.priority,
            queue_timeout_us=head.queue_timeout_us,
            must_run_alone=arrival.hand.delivery.num_delivered > 1,
            outputs=head.outputs,
            classifications=head.classifications,
            request_id=head.request_id,
            caller_id=head.caller_id,
            traceparent=head.traceparent,
            parameters=head.parameters,
            delivery=arrival.hand,
            on_settled=self._desk.settled,
        )

    def _enter(self, item: WorkItem, hand: InHand, queue: VersionQueue) -> None:
        """Queue the item, unless its first copy is still in hand: then only what is acked for it changes."""
        desk = self._desk
        first = desk.open.get(item.key)
        if first is not None:
            desk.num_duplicates += 1
            old = first.delivery
            assert isinstance(old, InHand)
            first.delivery = hand
            old.leave(first.rows)
            return
        desk.open[item.key] = item
        if not item.must_run_alone:
            queue.offer(item)
        elif self._config.may_retry:
            queue.offer_suspect(item)
        else:
            item.settle(InstanceDied(f"a worker that held this request died, and {item.model!r} runs none twice"))

    def _refuse(self, arrival: Arrival, head: RequestHead, error: HeadraceError) -> int:
        """Answer a request that never became an item; the rows it holds until the answer is out."""
        self._count(arrival, head, error)
        arrival.hand.num_open += 1
        message, rows = arrival.message, max(1, head.rows)
        deadline_s = self._desk.clock.from_wire_ms(head.deadline_unix_ms)
        result = ResultHead(id=head.id, code=error.code, message=error.message)
        destination = (message.reply, message.model, arrival.version)
        self._desk.outbox.add(destination, Run(arrival.hand, rows, deadline_s, [result]))
        return rows

    # -------- payloads by reference
    def _start_fetch(self, arrival: Arrival, head: RequestHead, checked: CheckedLayout, ref: BlobRef) -> int:
        arrival.hand.num_open += 1
        task = asyncio.get_running_loop().create_task(self._fetch(arrival, head, checked, ref))
        self._desk.fetches.add(task)
        task.add_done_callback(self._desk.fetches.discard)
        return max(1, head.rows)

    async def _fetch(self, arrival: Arrival, head: RequestHead, checked: CheckedLayout, ref: BlobRef) -> None:
        desk, hand = self._desk, arrival.hand
        deadline_s = desk.clock.from_wire_ms(head.deadline_unix_ms)
        try:
            async with asyncio.timeout(min(FETCH_TIMEOUT_S, deadline_s - arrival.now_s)), desk.fetch_slots:
                payload = await desk.transport.get_blob(ref)
            arrival.now_s = desk.now_s()
            item = self._item(arrival, head, checked, memoryview(payload))
        except StreamGone:
            hand.num_open -= 1
            gone = Unavailable(f"its payload of {ref.payload_bytes} bytes, sent by reference, is gone from the broker")
            self._refuse(arrival, head, gone)
        except (TransportError, TimeoutError) as e:
            log.warning("payload-not-fetched", error=str(e) or "time-out", payload_bytes=ref.payload_bytes)
            self._give_up(arrival, head, return_after_s=RETURN_AFTER_S)
        except HeadraceError as e:
            hand.num_open -= 1
            self._refuse(arrival, head, e)
        else:
            self._fetched(arrival, head, item)

    def _fetched(self, arrival: Arrival, head: RequestHead, item: WorkItem) -> None:
        queue = self._resolve(arrival.message.version)
        if self._is_unwanted(arrival, head) or arrival.hand.delivery.is_lost:
            self._give_up(arrival, head)
        elif queue is None or self._desk.is_draining:
            self._give_up(arrival, head, return_after_s=RETURN_AFTER_S)
        else:
            item.version = queue.version
            self._enter(item, arrival.hand, queue)

    def _give_up(self, arrival: Arrival, head: RequestHead, return_after_s: float | None = None) -> None:
        if return_after_s is not None:
            arrival.hand.return_after_s = return_after_s
        run = Run(arrival.hand, max(1, head.rows), arrival.now_s, [ResultHead(id=head.id)])
        self._desk.outbox.drop(run)
