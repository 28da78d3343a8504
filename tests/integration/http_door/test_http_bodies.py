"""Bodies: binary headers that lie, chunks, bounds, upgrades; no left-over byte is read as a request."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from tests.support.http_kit import EchoCore, RawClient, floats, get, http, open_door, works
from tests.support.waiting import until

# ------------------------------------------------------------------ O-03: the binary header

RAW = struct.pack("<4i", 1, 2, 3, 4)
INT32 = "/v2/models/ident_i32/infer"


def int32_text(size: object = 16) -> bytes:
    tensor = {"name": "IN", "shape": [1, 4], "datatype": "INT32", "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()


def binary(length: object, text: bytes = int32_text(), tail: bytes = RAW) -> bytes:
    return http(text + tail, f"Inference-Header-Content-Length: {length}", path=INT32)


async def test_a_binary_request_gets_a_binary_answer(client: RawClient) -> None:
    reply = await client.ask(binary(len(int32_text())))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/octet-stream"
    length = int(reply.headers["inference-header-content-length"])
    assert json.loads(reply.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert reply.body[length:] == RAW


@pytest.mark.parametrize("length", ["J-1", "J+1", "0", "-1", "abc", "", "9999999999", "9" * 30])
async def test_a_header_that_lies_is_400_and_the_next_request_works(client: RawClient, length: str) -> None:
    known = {"J-1": len(int32_text()) - 1, "J+1": len(int32_text()) + 1}
    reply = await client.ask(binary(known.get(length, length)))
    assert reply.status == 400
    assert "Inference-Header-Content-Length" in reply.error
    assert await works(client)


@pytest.mark.parametrize("size", [15, 17, -4, "16"])
async def test_a_size_that_lies_is_400_and_the_next_request_works(client: RawClient, size: object) -> None:
    text = int32_text(size)
    reply = await client.ask(binary(len(text), text))
    assert reply.status == 400
    assert "'IN'" in reply.error
    assert await works(client)


async def test_surplus_bytes_are_400_and_the_next_request_works(client: RawClient) -> None:
    reply = await client.ask(binary(len(int32_text()), tail=RAW + b"xyz"))
    assert reply.status == 400
    assert "3 bytes" in reply.error
    assert await works(client)


async def test_a_raw_binary_request_is_the_only_input(client: RawClient) -> None:
    reply = await client.ask(http(RAW, "Inference-Header-Content-Length: 0", path=INT32))
    assert reply.status == 200
    assert reply.body.endswith(RAW)


# ------------------------------------------------------------------ bodies


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_a_chunked_body_is_read_however_it_is_cut(client: RawClient, piece: int) -> None:
    body = floats(*range(100))
    chunks = [body[at : at + piece] for at in range(0, len(body), piece)]
    raw = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    reply = await client.ask(http(b"", "Transfer-Encoding: chunked") + raw)
    assert reply.json["outputs"][0]["data"] == list(range(100))
    assert await works(client)


async def test_a_request_that_comes_byte_by_byte_is_one_request(client: RawClient) -> None:
    for byte in http(floats(1, 2), "x-request-id: slow"):
        client.send(bytes([byte]))
        await asyncio.sleep(0)
    reply = await client.read()
    assert reply.status == 200
    assert reply.headers["x-request-id"] == "slow"


async def test_a_caller_that_expects_100_continue_gets_it_and_then_its_answer(client: RawClient) -> None:
    body = floats(4)
    client.send(http(b"", "Expect: 100-continue", f"Content-Length: {len(body)}"))
    assert (await client.read()).status == 100
    reply = await client.ask(body)
    assert reply.json["outputs"][0]["data"] == [4]
    assert await works(client)


async def test_a_body_announced_too_large_is_413_without_a_100_and_without_being_read(client: RawClient) -> None:
    client.send(http(b"", "Expect: 100-continue", "Content-Length: 400001"))
    reply = await client.read()
    assert reply.status == 413
    assert "400001" in reply.error
    assert "400000" in reply.error
    assert reply.headers["connection"] == "close"
    assert await client.is_closed()


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_body_over_the_limit_is_413_and_the_caller_can_read_it_while_still_sending(
    client: RawClient, is_chunked: bool
) -> None:
    if is_chunked:
        piece = b"%x\r\n%b\r\n" % (50_000, bytes(50_000))
        client.send(http(b"", "Transfer-Encoding: chunked"))
    else:
        piece = bytes(50_000)
        client.send(http(b"", "Content-Length: 100000000"))
    for _ in range(20):
        client.send(piece)
    reply = await client.read()
    assert reply.status == 413
    assert "400000" in reply.error
    assert await client.is_closed()


async def test_json_over_its_own_limit_is_413_and_the_connection_lives(client: RawClient) -> None:
    reply = await client.ask(http(b'{"inputs":[' + b" " * 200_000 + b"]}"))
    assert reply.status == 413
    assert "binary" in reply.error
    assert await works(client)


async def test_bodies_in_flight_are_bounded_over_all_connections(core: EchoCore) -> None:
    door = await open_door(core, max_held_bytes=1024 * 1024)
    try:
        async with RawClient(door.port) as first, RawClient(door.port) as second:
            first.send(http(b"", "Content-Length: 10000000") + bytes(900_000))
            await until(lambda: door.doorway.receiving_bytes >= 900_000)
            second.send(http(b"", "Content-Length: 10000000") + bytes(300_000))
            reply = await second.read()
            assert reply.status == 503
            assert reply.headers["retry-after"]
            first.writer.transport.abort()
            await until(lambda: door.doorway.receiving_bytes == 0)
            async with RawClient(door.port) as third:
                assert await works(third)
    finally:
        await door.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"NOT HTTP AT ALL\r\n\r\n",
        b"POST /v2/models/ident_f32/infer HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v2/models/ident_f32/infer HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2/models/ident_f32/infer HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/ident_f32/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
async def test_what_is_not_http_is_400_in_json_and_the_connection_ends(client: RawClient, raw: bytes) -> None:
    reply = await client.ask(raw)
    assert reply.status == 400
    assert "HTTP" in reply.error
    assert await client.is_closed()


@pytest.mark.parametrize("shape", ["one", "many", "url", "name", "trailer"])
async def test_endless_headers_are_refused(client: RawClient, shape: str) -> None:
    start = b"POST /v2/models/ident_f32/infer HTTP/1.1\r\n"
    piece = {"one": b"x" * 4096, "many": b"a: b\r\n" * 600, "url": b"u" * 4096, "name": b"n" * 4096}.get(
        shape, b"t" * 4096
    )
    begin = {"one": start + b"h: ", "many": start, "url": b"POST /", "name": start}
    client.send(begin.get(shape, http(b"", "Transfer-Encoding: chunked") + b"0\r\nt: "))
    for _ in range(60):
        client.send(piece)
        await client.writer.drain()
    reply = await client.read()
    assert reply.status == 431
    assert await client.is_closed()


@pytest.mark.parametrize("path", ["/v2/models/ident_f32/infer", "/v2/health/live"])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("kind", ["header", "headers", "url"])
async def test_a_head_over_the_limit_is_refused_however_it_comes(
    client: RawClient, kind: str, before: int, path: str
) -> None:
    headers = {"header": ["h: " + "x" * 66_000], "headers": ["a: b"] * 12_000, "url": []}[kind]
    url = path + "?" + "u" * 66_000 if kind == "url" else path
    client.send(http(floats(1)) * before + http(floats(1), *headers, path=url))
    for _ in range(before):
        assert (await client.read()).status == 200
    reply = await client.read()
    assert reply.status == 431
    assert "65536" in reply.error
    assert await client.is_closed()


async def test_a_head_just_under_the_limit_is_served(client: RawClient) -> None:
    assert (await client.ask(http(floats(1), "h: " + "x" * 65_000))).status == 200


@pytest.mark.parametrize("path", ["/v2/models/ident_f32%2Finfer", "/v2/models/other%2Finfer"])
async def test_an_encoded_slash_makes_another_model_that_is_not_there(client: RawClient, path: str) -> None:
    assert (await client.ask(http(floats(1), path=path))).status == 404


async def test_an_http_1_0_caller_is_answered_and_the_connection_ends(client: RawClient) -> None:
    body = floats(1)
    for header in ("", "Connection: keep-alive\r\n"):
        async with RawClient(client._port) as old:
            old.send(
                b"POST /v2/models/ident_f32/infer HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n%b"
                % (header.encode(), len(body), body)
            )
            reply = await old.read()
            assert reply.status == 200
            assert reply.headers["connection"] == "close"
            assert await old.is_closed()


async def test_a_caller_that_asks_to_close_is_closed_after_its_answer(client: RawClient) -> None:
    client.send(http(floats(1), "Connection: close") + http(floats(2)))
    reply = await client.read()
    assert reply.headers["connection"] == "close"
    assert await client.is_closed()


async def test_an_upgrade_nobody_speaks_is_answered_as_plain_http(client: RawClient) -> None:
    upgrade = http(floats(3), "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    for cut in (len(upgrade), 10, len(upgrade) - 5):
        client.send(upgrade[:cut])
        await asyncio.sleep(0.01)
        client.send(upgrade[cut:] + http(floats(4)))
        assert (await client.read()).json["outputs"][0]["data"] == [3]
        assert (await client.read()).json["outputs"][0]["data"] == [4]
    assert (await client.ask(get("/v2/health/live", "Connection: Upgrade", "Upgrade: h2c"))).status == 200
    assert await works(client)


@pytest.mark.parametrize("head", [("Authorization: a", "Authorization: b"), ("Content-Encoding: br",)])
async def test_a_refused_upgrade_does_not_leave_its_body_behind(client: RawClient, head: tuple[str, ...]) -> None:
    smuggled = http(floats(9, id="smuggled"))
    client.send(http(smuggled, *head, "Connection: Upgrade", "Upgrade: h2c") + http(floats(1, id="next")))
    assert (await client.read()).status == 400
    assert (await client.read()).json["id"] == "next"


async def test_an_upgrade_with_a_body_elsewhere_is_refused(client: RawClient) -> None:
    smuggled = http(floats(9, id="smuggled"))
    reply = await client.ask(http(smuggled, "Connection: Upgrade", "Upgrade: h2c", path="/v2/health/live"))
    assert reply.status == 400
    assert await client.is_closed()


async def test_a_chunked_body_with_an_upgrade_is_never_read_as_the_next_request(client: RawClient) -> None:
    smuggled = http(floats(9, id="smuggled"))
    raw = http(b"", "Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")
    client.send(raw + b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled))
    reply = await client.read()
    assert reply.status == 400
    assert await client.is_closed()
