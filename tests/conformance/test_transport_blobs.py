"""transport/base.py, payloads by reference: the same promises from the in-process twin and from nats-server."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

from contract.messages import BlobRef
from contract.streams import BLOB_PART_BYTES, BrokerLimits, blob_stream
from contract.subjects import BLOB_STREAM
from tests.support.transports import Transports
from tests.support.waiting import Inbox
from transport.base import Disconnected, StreamFull, StreamGone
from transport.nats_transport import NatsTransport

STREAM = blob_stream(BrokerLimits(blob_max_bytes=64 * 1024 * 1024))


async def gone(transport: NatsTransport, ref: BlobRef) -> None:
    """Wait until a purge, which nobody answers, has happened."""
    async with asyncio.timeout(15):
        while True:
            try:
                await transport.get_blob(ref)
            except StreamGone:
                return


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [BLOB_PART_BYTES], [BLOB_PART_BYTES + 1], [3, 5 * 1024 * 1024, 0, 700_000], [100_000] * 30],
    ids=str,
)
async def test_a_blob_comes_back_as_it_was_put(transports: Transports, sizes: list[int]) -> None:
    a, b = await transports.make(), await transports.make()
    await a.ensure_stream(STREAM)
    parts = [os.urandom(size) for size in sizes]
    ref = await a.put_blob("gw", [memoryview(p) if i % 2 else p for i, p in enumerate(parts)])
    assert ref.owner == "gw"
    assert ref.payload_bytes == sum(sizes)
    assert ref.num_parts == -(-sum(sizes) // BLOB_PART_BYTES)
    assert await b.get_blob(ref) == b"".join(parts)


async def test_a_purged_blob_is_gone_and_its_neighbour_is_not(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(STREAM)
    first, second = await a.put_blob("gw", [b"first"]), await a.put_blob("gw", [b"second"])
    a.purge_blob(first)
    await gone(a, first)
    assert await a.get_blob(second) == b"second"


async def test_a_blob_with_a_missing_part_is_gone(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(STREAM)
    ref = await a.put_blob("gw", [bytes(BLOB_PART_BYTES * 3)])
    await a.purge(BLOB_STREAM, f"blob.gw.{ref.blob_id}.1")
    with pytest.raises(StreamGone, match="part 1 of 3"):
        await a.get_blob(ref)


async def test_a_blob_whose_bytes_are_not_those_put_is_gone(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(STREAM)
    ref = await a.put_blob("gw", [b"whole"])
    await a.put_message(f"blob.gw.{ref.blob_id}.0", b"other bytes")
    with pytest.raises(StreamGone, match="11 bytes, 5 were put"):
        await a.get_blob(ref)


async def test_a_blob_that_does_not_fit_leaves_nothing(transports: Transports) -> None:
    a = await transports.make()
    await a.ensure_stream(msgspec.structs.replace(STREAM, max_bytes=4 * 1024 * 1024))
    with pytest.raises(StreamFull):
        await a.put_blob("gw", [bytes(8 * 1024 * 1024)])
    async with asyncio.timeout(15):
        while True:  # the purge is not answered either
            try:
                ref = await a.put_blob("gw", [bytes(3 * 1024 * 1024)])
                break
            except StreamFull:
                continue
    assert len(await a.get_blob(ref)) == 3 * 1024 * 1024


async def test_a_blob_without_its_stream_or_broker_fails(transports: Transports) -> None:
    a = await transports.make()
    with pytest.raises(StreamGone):
        await a.put_blob("gw", [b"x"])
    lost = Inbox()
    a.on_disconnect(lambda: lost.append(True))
    await transports.take_away()
    await lost.has(1)
    with pytest.raises(Disconnected):
        await a.put_blob("gw", [b"x"])
    await transports.bring_back()
