"""Payloads by reference: cut into parts under the broker's limit, stored as messages, read by direct get.

64 MiB take about 0.2 s each way. Bounded: at most WINDOW parts of one payload are on their way at a time. Whoever was
killed in the middle leaves nothing for long: the stream's `max_age` takes it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from typing import Final

from contract.messages import BlobRef
from contract.streams import BLOB_PART_BYTES
from contract.subjects import BLOB_STREAM, blob_subject
from transport.base import BrokerTimeout, PublishOutcome, Stored, StreamGone, TransportError
from transport.ensure import JetStream
from transport.link import Link, encode_subject
from transport.mux import AckMux

WINDOW: Final = 8
PART_TIMEOUT_S: Final = 5.0


class Blobs:
    """Puts, gets and purges payloads."""

    def __init__(self, link: Link, acks: AckMux, streams: JetStream) -> None:
        self._link = link
        self._acks = acks
        self._streams = streams

    async def put(self, owner: str, parts: Sequence[bytes | memoryview]) -> BlobRef:
        """Store the joined `parts`. What was stored before a failure is purged."""
        blob_id = secrets.token_hex(8)
        part_bytes = min(BLOB_PART_BYTES, self._link.max_payload)
        num_parts = 0
        upload = _Upload()
        try:
            for num_parts, chunk in enumerate(_cut(parts, part_bytes), 1):
                await upload.room(WINDOW)
                self._acks.publish(encode_subject(blob_subject(owner, blob_id, num_parts - 1)), chunk, upload.stored)
                upload.num_open += 1
            await upload.room(1)
        except TransportError:
            if self._link.is_up:
                await upload.settled()  # a part stored behind the purge would stay
                self._streams.purge_soon(BLOB_STREAM, blob_subject(owner, blob_id, "*"))
            raise
        return BlobRef(owner, blob_id, num_parts, sum(len(memoryview(p).cast("B")) for p in parts))

    async def get(self, ref: BlobRef) -> bytes:
        """The whole payload."""
        limit = asyncio.Semaphore(WINDOW)

        async def part(n: int) -> bytes:
            async with limit:
                subject = blob_subject(ref.owner, ref.blob_id, n)
                found = await self._streams.last_message(BLOB_STREAM, subject, PART_TIMEOUT_S)
            if found is None:
                raise StreamGone(f"part {n} of {ref.num_parts} of blob {ref.blob_id} is gone")
            return found

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part(n)) for n in range(ref.num_parts)]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        payload = b"".join([t.result() for t in tasks])
        if len(payload) != ref.payload_bytes:
            raise StreamGone(f"blob {ref.blob_id} has {len(payload)} bytes, {ref.payload_bytes} were put")
        return payload

    def purge(self, ref: BlobRef) -> None:
        """Delete it, not awaited."""
        self._streams.purge_soon(BLOB_STREAM, blob_subject(ref.owner, ref.blob_id, "*"))


class _Upload:
    """Parts on their way and the first failure among them."""

    def __init__(self) -> None:
        self.num_open = 0
        self._failure: TransportError | None = None
        self._changed = asyncio.Event()

    def stored(self, outcome: PublishOutcome) -> None:
        self.num_open -= 1
        if not isinstance(outcome, Stored):
            self._failure = self._failure or outcome
        self._changed.set()

    async def room(self, window: int) -> None:
        """Wait until fewer than `window` parts are open; raise the first failure."""
        while self.num_open >= window and self._failure is None:
            await self._change()
        if self._failure is not None:
            raise self._failure

    async def settled(self) -> None:
        """Wait until every part is answered; each has its own time-out."""
        while self.num_open:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(2 * PART_TIMEOUT_S):
                await self._changed.wait()
        except TimeoutError:
            raise BrokerTimeout("a part of a large payload was never acknowledged") from None


def _cut(parts: Sequence[bytes | memoryview], part_bytes: int) -> Iterator[bytes]:
    """`parts` joined and cut again, one copy in all."""
    waiting: list[memoryview] = []
    have = 0
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            taken = view[: part_bytes - have]
            waiting.append(taken)
            have += len(taken)
            view = view[len(taken) :]
            if have == part_bytes:
                yield b"".join(waiting)
                waiting, have = [], 0
    if have:
        yield b"".join(waiting)
