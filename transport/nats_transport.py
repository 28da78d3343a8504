"""`base.Transport` over any link that speaks NATS subjects and JetStream's API. Holds no socket.

One timer each half second does all that needs time: in-progress acks, the fence, ack time-outs, lanes' credits.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from contract.messages import BlobRef
from contract.streams import IN_PROGRESS_S, ConsumerSpec, StreamSpec
from contract.subjects import LaneAddress
from transport.base import (
    Lane,
    OnDelivery,
    OnLost,
    OnMessage,
    OnStored,
    PublishOutcome,
    RowWindow,
    Stored,
    Subscription,
    TransportError,
)
from transport.blobs import Blobs
from transport.clock import ASK_EACH_S, ASK_SUBJECT, host_clock, observe_answer
from transport.ensure import JetStream
from transport.hand import Hand
from transport.headers import OnHeaded, format_headers, parse_headers
from transport.lane import PullLane, PullWindow
from transport.link import Link, call_safely, encode_subject
from transport.mux import ACK_TIMEOUT_S, AckMux, RequestMux

CLOCK_TIMEOUT_S: Final = 0.5
CLOSE_TIMEOUT_S: Final = 1.0


class NatsTransport:
    """One connection to the broker."""

    def __init__(self, link: Link, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.name = link.name
        self.clock = host_clock(now_s())
        self.link = link
        self._now_s = now_s
        self._inbox = f"_INBOX.{secrets.token_hex(6)}"
        self._num_inboxes = 0
        self._requests = RequestMux(link, f"{self._inbox}.q")
        self._acks = AckMux(link, f"{self._inbox}.a", now_s)
        self._streams = JetStream(link, self._requests)
        self._blobs = Blobs(link, self._acks, self._streams)
        self._hand = Hand(now_s)
        self._lanes: list[PullLane] = []
        self._on_disconnect: list[Callable[[], None]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._clock_asked_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._hand.on_fence(self._fenced)
        link.watch(self._link_lost, self._link_back)

    async def start(self) -> None:
        """Listen to our inboxes, read the broker's clock, start the timer."""
        await self._requests.start()
        await self._acks.start()
        await self._read_clock()
        self._tick()

    @property
    def max_payload(self) -> int:
        """Bytes the broker takes in one message."""
        return self.link.max_payload

    @property
    def is_connected(self) -> bool:
        """Whether messages can be sent now."""
        return self.link.is_up

    @property
    def num_reconnects(self) -> int:
        """Connections after the first."""
        return self.link.num_reconnects

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time the connection is lost."""
        self._on_disconnect.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time it is back and the subscriptions stand again."""
        self._on_reconnect.append(callback)

    def at_tick_end(self, call: Callable[[], None]) -> None:
        """Call once, just before the next write."""
        self.link.at_tick_end(call)

    # ---------------------------------------------------------------- core messages
    def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send at most once."""
        self.link.send(encode_subject(subject), payload, encode_subject(reply) if reply else b"")

    def reply(self, subject: str, payload: bytes) -> None:
        """Like publish; for answering a request."""
        self.link.send(encode_subject(subject), payload)

    def new_inbox(self, label: str) -> str:
        """A reply subject of this connection's own."""
        self._num_inboxes += 1
        return f"{self._inbox}.{label}{self._num_inboxes}"

    async def subscribe(self, subject: str, callback: OnMessage, queue: str = "") -> Subscription:
        """Deliver every message on `subject`."""
        encode_subject(subject)

        def on_raw(subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
            del header
            callback(subject.decode(), reply.decode(), payload)

        return await self.link.listen(subject, on_raw, queue)

    async def subscribe_with_headers(self, subject: str, callback: OnHeaded, queue: str = "") -> Subscription:
        """Like `subscribe`, for the doors."""
        encode_subject(subject)

        def on_raw(subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
            callback(subject.decode(), reply.decode(), payload, parse_headers(header))

        return await self.link.listen(subject, on_raw, queue)

    def publish_with_headers(self, subject: str, payload: bytes, headers: Iterable[tuple[str, str]]) -> None:
        """Like `publish`, for the doors."""
        self.link.send(encode_subject(subject), payload, header=format_headers(headers))

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        """The first answer."""
        return (await self._requests.ask(encode_subject(subject), payload, timeout_s)).payload

    # ---------------------------------------------------------------- streams
    def publish_stored(self, subject: str, payload: bytes, on_stored: OnStored) -> None:
        """Publish to a stream without waiting."""
        self._acks.publish(encode_subject(subject), payload, on_stored)

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Create it, or check that what exists is equal."""
        await self._streams.ensure_stream(spec)

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Likewise for a consumer."""
        await self._streams.ensure_consumer(spec)

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Remove it."""
        await self._streams.delete_consumer(stream, consumer)

    async def purge(self, stream: str, subject_filter: str) -> int:
        """Delete the stream's messages under the filter."""
        return await self._streams.purge(stream, subject_filter)

    def delete_message(self, stream: str, sequence: int) -> None:
        """Delete one message, not awaited."""
        self._streams.delete_message(stream, sequence)

    async def last_message(self, stream: str, subject: str) -> bytes | None:
        """The newest payload on exactly `subject`, or None."""
        return await self._streams.last_message(stream, subject)

    async def put_message(self, subject: str, payload: bytes) -> int:
        """Store and wait for the sequence."""
        future: asyncio.Future[PublishOutcome] = asyncio.get_running_loop().create_future()

        def stored(outcome: PublishOutcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.publish_stored(subject, payload, stored)
        async with asyncio.timeout(2 * ACK_TIMEOUT_S):  # the ack's own time-out comes first
            outcome = await future
        if not isinstance(outcome, Stored):
            raise outcome
        return outcome.sequence

    async def lane_backlog(self, spec: ConsumerSpec) -> tuple[int, int]:
        """(messages waiting, messages in workers' hands) of a consumer."""
        return await self._streams.backlog(spec)

    # ---------------------------------------------------------------- lanes
    def row_window(self, max_rows: int) -> RowWindow:
        """A window that several lanes can share."""
        return PullWindow(self.link, max_rows)

    async def open_lane(
        self, address: LaneAddress, window: RowWindow, on_delivery: OnDelivery, *, is_always_open: bool = False
    ) -> Lane:
        """Create the lane's consumer if need be and pull from it."""
        assert isinstance(window, PullWindow), "make the window with row_window()"
        lane = PullLane(
            self.link,
            self._hand,
            window,
            address,
            on_delivery=on_delivery,
            ensure=self._streams.ensure_lane,
            clock=self.clock,
            now_s=self._now_s,
            is_always_open=is_always_open,
        )
        await lane.start(self.new_inbox("l"))
        window.lanes.append(lane)
        window.mark()
        self._lanes.append(lane)
        return lane

    def on_lost(self, callback: OnLost) -> None:
        """Tell what must be dropped."""
        self._hand.on_lost(callback)

    # ---------------------------------------------------------------- payloads by reference
    async def put_blob(self, owner: str, parts: list[bytes | memoryview]) -> BlobRef:
        """Store a large payload, joined from `parts`."""
        return await self._blobs.put(owner, parts)

    async def get_blob(self, ref: BlobRef) -> bytes:
        """The whole payload."""
        return await self._blobs.get(ref)

    def purge_blob(self, ref: BlobRef) -> None:
        """Delete it, not awaited."""
        self._blobs.purge(ref)

    # ---------------------------------------------------------------- life
    async def close(self) -> None:
        """Give pulls up, flush and close within two seconds."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.gather(*(lane.stop() for lane in self._lanes))
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.link.close()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(IN_PROGRESS_S, self._tick)
        now_s = self._now_s()
        self._hand.sign(is_up=self.link.is_up)
        self._acks.sweep(now_s)
        for lane in self._lanes:
            lane.tick(now_s)
        self._lanes = [lane for lane in self._lanes if not lane.is_done]
        if self.link.is_up and now_s - self._clock_asked_s > ASK_EACH_S:
            self._run(self._read_clock())

    async def _read_clock(self) -> None:
        self._clock_asked_s = sent_s = self._now_s()
        with contextlib.suppress(TransportError):
            answer = await self._requests.ask(ASK_SUBJECT, b"", CLOCK_TIMEOUT_S)
            observe_answer(self.clock, answer.payload, sent_s, self._now_s())

    def _link_lost(self) -> None:
        for lane in self._lanes:
            lane.disconnected()
        for callback in self._on_disconnect:
            call_safely(callback)

    def _link_back(self) -> None:
        for lane in self._lanes:
            lane.recover()
        for callback in self._on_reconnect:
            call_safely(callback)

    def _fenced(self) -> None:
        for lane in self._lanes:
            lane.fenced()
        self._run(self._flush_stale())

    async def _flush_stale(self) -> None:
        """What the broker sent before we woke comes before the pong and belongs to others by now."""
        with contextlib.suppress(TransportError):
            await self.link.ping()
        for lane in self._lanes:
            lane.woke()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
