"""Compressed requests and answers at the HTTP door: both codings, both ways, and what a bomb may cost."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import Callable

import psutil
import pytest

from gateway.http.server import HttpDoor
from tests.support.http_kit import EchoCore, RawClient, Reply, floats, http, open_door, works
from tests.support.waiting import until

MIB = 1024 * 1024


def bare_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(body) + deflater.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare_deflate),
}


def plain(reply: Reply) -> bytes:
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, "": bytes}
    return unpack[reply.headers.get("content-encoding", "")](reply.body)


def binary(num_values: int, *headers: str) -> tuple[bytes, bytes, list[str]]:
    """A binary request to `ident_f32`: the body, its tensor, and its headers."""
    tensor = random.Random(7).randbytes(4 * num_values)
    text = (
        b'{"inputs":[{"name":"IN","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],'
        b'"parameters":{"binary_data_output":true}}' % (num_values, len(tensor))
    )
    return text + tensor, tensor, [f"Inference-Header-Content-Length: {len(text)}", *headers]


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_request_is_answered_like_a_plain_one(client: RawClient, coding: str) -> None:
    name, compress = CODINGS[coding]
    for num_values in (3, 20_000):
        body = floats(*range(num_values), id="packed")
        reply = await client.ask(http(compress(body), f"Content-Encoding: {name}"))
        assert reply.json["outputs"][0]["data"] == list(range(num_values))
        assert "content-encoding" not in reply.headers
    assert await works(client)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_the_header_length_counts_bytes_of_the_plain_body(client: RawClient, coding: str) -> None:
    name, compress = CODINGS[coding]
    for num_values in (4, 90_000):
        body, tensor, headers = binary(num_values, f"Content-Encoding: {name}", f"Accept-Encoding: {name}")
        reply = await client.ask(http(compress(body), *headers))
        assert reply.status == 200
        assert reply.headers["content-encoding"] == name
        assert plain(reply)[int(reply.headers["inference-header-content-length"]) :] == tensor
    assert await works(client)


async def test_chunks_carry_a_compressed_body_too(client: RawClient) -> None:
    packed = gzip.compress(floats(*range(5000)))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (packed[:7], packed[7:8], packed[8:])) + b"0\r\n\r\n"
    head = http(b"", "Content-Encoding: gzip", "Transfer-Encoding: chunked")
    reply = await client.ask(head + chunks)
    assert reply.json["outputs"][0]["data"] == list(range(5000))


@pytest.mark.parametrize(
    ("accepted", "used"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("GZIP", "gzip"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.2, deflate;q=0.8", "deflate"),
        ("gzip;q=0, *", "deflate"),
        ("*", "gzip"),
        ("br, zstd", ""),
        ("identity", ""),
        ("gzip;q=0", ""),
        ("gzip;q=0.1, identity;q=0.5", ""),
        ("gzip;q=many", ""),
        ("", ""),
        (",;,=;q", ""),
    ],
)
async def test_an_answer_comes_in_the_coding_its_caller_prefers(client: RawClient, accepted: str, used: str) -> None:
    reply = await client.ask(http(floats(*range(2000)), f"Accept-Encoding: {accepted}"))
    assert reply.headers.get("content-encoding", "") == used
    assert reply.headers["content-type"] == "application/json"
    assert b'"data":[0.0,1.0,2.0' in plain(reply)
    assert await works(client)


async def test_a_small_answer_is_compressed_only_for_who_asks_for_one_coding(client: RawClient) -> None:
    assert "content-encoding" in (await client.ask(http(floats(1), "Accept-Encoding: gzip"))).headers
    assert "content-encoding" not in (await client.ask(http(floats(1), "Accept-Encoding: gzip, deflate"))).headers


async def test_what_does_not_shrink_goes_as_it_is_unless_asked_for_alone(client: RawClient) -> None:
    for accepted, used in (("gzip, deflate", None), ("gzip", "gzip")):
        body, tensor, headers = binary(50_000, f"Accept-Encoding: {accepted}")
        reply = await client.ask(http(body, *headers))
        assert reply.headers.get("content-encoding") == used
        assert plain(reply).endswith(tensor)


async def test_errors_and_other_routes_are_never_compressed(client: RawClient) -> None:
    reply = await client.ask(http(b"{", "Accept-Encoding: gzip"))
    assert reply.status == 400
    assert "content-encoding" not in reply.headers
    client.send(b"GET /v2/models/ident_f32/config HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
    assert (await client.read()).json["name"] == "ident_f32"


BODY = gzip.compress(floats(1, 2), mtime=0)


@pytest.mark.parametrize(
    ("coding", "body", "told"),
    [
        ("gzip", floats(1, 2), "no valid gzip"),
        ("gzip", zlib.compress(floats(1, 2)), "no valid gzip"),
        ("gzip", b"", "cut off"),
        ("gzip", BODY[:-1], "cut off"),
        ("gzip", BODY[:9], "cut off"),
        ("gzip", BODY + b"x", "1 bytes are left over"),
        ("gzip", BODY + BODY, "left over"),
        ("gzip", BODY[:-8] + b"\0" * 8, "no valid gzip"),
        ("deflate", BODY, "no valid deflate"),
        ("deflate", b"", "cut off"),
        ("deflate", zlib.compress(floats(1, 2))[:-2], "cut off"),
        ("br", b"x", "'br' is not supported"),
        ("gzip, gzip", gzip.compress(BODY, mtime=0), "'gzip, gzip' is not supported"),
        ("gzip", gzip.compress(b"{", mtime=0), "JSON is malformed"),
    ],
)
async def test_a_bad_body_is_told_in_words_and_the_connection_goes_on(
    client: RawClient, coding: str, body: bytes, told: str
) -> None:
    reply = await client.ask(http(body, f"Content-Encoding: {coding}"))
    assert reply.status == 400
    assert told in reply.error
    assert await works(client)


def bomb(num_bytes: int, fill: bytes = b" ") -> bytes:
    deflater = zlib.compressobj(9, wbits=31)
    block = fill * MIB
    return b"".join([deflater.compress(block) for _ in range(num_bytes // MIB)]) + deflater.flush()


async def test_a_bomb_is_413_before_it_is_held(core: EchoCore) -> None:
    door = await open_door(core, max_request_bytes=8 * MIB)
    process, packed = psutil.Process(), bomb(256 * MIB)
    try:
        async with RawClient(door.port) as client:
            await client.ask(http(bomb(16 * MIB), "Content-Encoding: gzip"))
            before = process.memory_info().rss
            for headers in ((), ("Inference-Header-Content-Length: 40",)):
                reply = await client.ask(http(packed, "Content-Encoding: gzip", *headers))
                assert reply.status == 413
                assert str(8 * MIB) in reply.error
            assert process.memory_info().rss - before < 64 * MIB
            assert await works(client)
    finally:
        await door.close()
    assert not core.requests[1:]


async def test_many_bodies_that_grow_are_counted_together(core: EchoCore) -> None:
    door = await open_door(core, max_request_bytes=32 * MIB, max_held_bytes=40 * MIB)
    packed = bomb(31 * MIB)

    async def ask() -> int:
        async with RawClient(door.port) as client:
            headers = ("Content-Encoding: gzip", f"Inference-Header-Content-Length: {31 * MIB}")
            return (await client.ask(http(packed, *headers))).status

    try:
        statuses = await asyncio.gather(*(ask() for _ in range(6)))
    finally:
        await door.close()
    assert 503 in statuses
    assert set(statuses) <= {503, 413}  # 413: the one that fits is JSON over its own limit
    assert door.doorway.receiving_bytes == 0


async def test_a_caller_that_leaves_while_its_body_grows_is_forgotten(core: EchoCore) -> None:
    door = await open_door(core, max_request_bytes=256 * MIB)
    try:
        async with RawClient(door.port) as client:
            client.send(http(bomb(100 * MIB), "Content-Encoding: gzip", "Inference-Header-Content-Length: 1"))
            await until(lambda: door.doorway.tasks)
        await until(lambda: not door.doorway.tasks and not door.doorway.counters.num_in_flight)
        assert door.doorway.receiving_bytes == 0
        assert door.doorway.counters.requests == {("ident_f32", "cancelled"): 1}
        assert not core.requests
    finally:
        await door.close()


async def test_answers_keep_their_order_while_a_large_body_is_unpacked_and_packed(client: RawClient) -> None:
    large, tensor, headers = binary(80_000, "Content-Encoding: gzip", "Accept-Encoding: deflate")
    client.send(http(gzip.compress(large), *headers) + http(floats(1, id="second")) + http(floats(2, id="third")))
    assert plain(await client.read()).endswith(tensor)
    assert [(await client.read()).json["id"] for _ in range(2)] == ["second", "third"]


async def test_the_loop_is_not_held_up_by_a_large_body(core: EchoCore) -> None:
    door = await open_door(core, max_request_bytes=256 * MIB)
    loop, longest_s = asyncio.get_running_loop(), 0.0
    try:
        async with RawClient(door.port) as client:
            client.send(http(bomb(120 * MIB), "Content-Encoding: gzip", "Inference-Header-Content-Length: 1"))
            reading = asyncio.create_task(client.read())
            while not reading.done():
                began_s = loop.time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, loop.time() - began_s)
            assert (await reading).status == 400
    finally:
        await door.close()
    assert longest_s < 0.5  # at one go it takes about as long


async def test_a_deadline_passes_while_a_body_is_unpacked(door: HttpDoor) -> None:
    async with RawClient(door.port) as client:
        body, _, headers = binary(90_000, "Content-Encoding: gzip", "Headrace-Timeout-Ms: 1")
        reply = await client.ask(http(gzip.compress(body), *headers))
        assert reply.status in (200, 504)  # a millisecond may be enough
        assert await works(client)


async def test_other_routes_with_a_body_take_it_compressed_too(client: RawClient) -> None:
    index = http(gzip.compress(b'{"ready": true}'), "Content-Encoding: gzip", path="/v2/repository/index")
    assert (await client.ask(index)).status == 200
    bad = http(b'{"ready": true}', "Content-Encoding: deflate", path="/v2/repository/index")
    reply = await client.ask(bad)
    assert reply.status == 400
    assert "deflate" in reply.error
    assert (await client.ask(http(b"", "Content-Encoding: br", path="/v2/repository/index"))).status == 400
    assert await works(client)


async def test_a_bomb_on_another_route_is_413(core: EchoCore) -> None:
    door = await open_door(core, max_request_bytes=8 * MIB)
    try:
        async with RawClient(door.port) as client:
            packed = http(bomb(64 * MIB), "Content-Encoding: gzip", path="/v2/repository/index")
            assert (await client.ask(packed)).status == 413
            assert await works(client)
    finally:
        await door.close()


async def test_a_request_that_may_be_answered_later_takes_and_gives_both_codings(client: RawClient) -> None:
    for num_values in (3, 30_000):
        body, tensor, headers = binary(num_values, "Content-Encoding: gzip", "Accept-Encoding: deflate")
        reply = await client.ask(http(gzip.compress(body), *headers, "Prefer: respond-async, wait=10"))
        assert reply.status == 200
        assert plain(reply).endswith(tensor)
    assert await works(client)
