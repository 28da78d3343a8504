"""Payloads over the broker's message limit: tensors of large requests out, large results in, by reference.

Few at a time, the rest waits; what waits is bounded by admission's `max_held_bytes`. Publishes no request itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from contract.errors import BrokerAway, TooLarge, Unavailable
from contract.messages import BlobRef
from contract.streams import StreamSpec
from gateway.inflight import Entry, Inflight
from transport.base import Disconnected, StreamFull, StreamGone, Transport, TransportError

MAX_CONCURRENT: Final = 4
"""Payloads moved at once in each direction: each may hold its bytes a second time while it is cut."""
RETRY_S: Final = 0.1
MAX_TRIES: Final = 20
MAX_TRIES_FULL: Final = 10
"""While the broker's blob memory is full: those who fill it together go as soon as their answers are read."""

log = structlog.get_logger("gateway.payloads")


class Payloads:
    """Moves large payloads for one gateway."""

    def __init__(
        self,
        transport: Transport,
        gateway: str,
        spec: StreamSpec,
        inflight: Inflight,
        on_uploaded: Callable[[Entry], None],
    ) -> None:
        self._transport = transport
        self._gateway = gateway
        self._spec = spec
        self._inflight = inflight
        self._on_uploaded = on_uploaded
        self._uploading = asyncio.Semaphore(MAX_CONCURRENT)
        self._fetching = asyncio.Semaphore(MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()
        self.stranded: list[Entry] = []
        """Open entries whose upload failed for the broker's sake; recovery takes them up again."""

    def upload(self, entry: Entry) -> None:
        """Store the entry's tensors, then hand it to `on_uploaded` with `blob` set."""
        if entry.is_uploading:
            return
        if entry.blob is not None:
            self._on_uploaded(entry)
            return
        limit = self._spec.max_bytes
        if entry.body_bytes > limit:
            reason = f"the request has {entry.body_bytes} bytes of tensors, the broker's blob memory holds {limit}"
            self._inflight.end(entry, TooLarge(reason), is_settled=True)
            return
        entry.is_uploading = True
        self._spawn(self._upload(entry))

    def fetch(self, ref: BlobRef, on_fetched: Callable[[bytes | TransportError], None]) -> None:
        """Read a large result and delete it; `on_fetched` is called exactly once."""
        self._spawn(self._fetch(ref, on_fetched))

    def purge(self, ref: BlobRef) -> None:
        """Delete it; where that fails its age ends it."""
        try:
            self._transport.purge_blob(ref)
        except TransportError as e:
            log.info("blob-not-purged", blob=ref.blob_id, error=str(e))

    async def close(self) -> None:
        """Stop what runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, moving: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(moving)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _upload(self, entry: Entry) -> None:
        try:
            async with self._uploading:
                ref = await self._put(entry) if entry.is_open else None
        finally:
            entry.is_uploading = False
        if ref is None:
            if entry.is_open:
                self.stranded.append(entry)
            return
        if not entry.is_open:
            self.purge(ref)
            return
        entry.blob = ref
        self._on_uploaded(entry)

    async def _put(self, entry: Entry) -> BlobRef | None:
        """The reference, or None if the entry ended or the broker did not take it in time."""
        num_full = 0
        for _ in range(MAX_TRIES):
            try:
                return await self._transport.put_blob(self._gateway, entry.request.data)
            except StreamFull as e:
                num_full += 1
                if num_full < MAX_TRIES_FULL:
                    # Apart from each other: several that are half stored would keep each other out for ever.
                    await asyncio.sleep(random.uniform(0, 2 * RETRY_S))  # noqa: S311 - no secret
                    if entry.is_open:
                        continue
                    return None
                reason = (
                    f"{entry.body_bytes} bytes of tensors do not fit the broker's blob memory of "
                    f"{self._spec.max_bytes} bytes now: {e}"
                )
                self._inflight.end(entry, Unavailable(reason), is_settled=True)
                return None
            except Disconnected:
                return None
            except TransportError as e:
                log.warning("upload-failed", request_id=entry.request.request_id, error=str(e))
                if isinstance(e, StreamGone):
                    await self._ensure()
            await asyncio.sleep(RETRY_S)
            if not entry.is_open:
                return None
        return None

    async def _ensure(self) -> None:
        try:
            await self._transport.ensure_stream(self._spec)
        except TransportError as e:
            log.warning("blob-stream-missing", error=str(e))

    async def _fetch(self, ref: BlobRef, on_fetched: Callable[[bytes | TransportError], None]) -> None:
        got: bytes | TransportError
        try:
            async with self._fetching:
                got = await self._transport.get_blob(ref)
        except TransportError as e:
            got = e
        except asyncio.CancelledError:
            on_fetched(Disconnected("the gateway stopped"))
            raise
        on_fetched(got)
        self.purge(ref)


def fetch_failed(ref: BlobRef, error: TransportError) -> BrokerAway:
    """What the caller hears when a large result could not be read."""
    return BrokerAway(f"the answer's {ref.payload_bytes} bytes could not be read from the broker: {error}")
