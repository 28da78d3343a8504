"""The HTTP door byte by byte: connections that stay usable, lies that are refused, callers that leave."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from contract.errors import InvalidInput, QueueFull
from gateway.http import turns
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore, RawClient, floats, get, http, identify, numbers, open_door
from tests.support.waiting import until


async def works(client: RawClient) -> bool:
    """Whether the connection answers a good request as if nothing had been before."""
    reply = await client.ask(http(floats(1, 2, id="after")))
    return reply.status == 200 and reply.json["id"] == "after" and reply.json["outputs"][0]["data"] == [1, 2]


# ------------------------------------------------------------------ the ordinary request


async def test_a_request_is_answered_with_its_id_and_ours(client: RawClient) -> None:
    reply = await client.ask(http(floats(1.5, id="mine")))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert reply.json == {
        "id": "mine",
        "model_name": "ident_f32",
        "model_version": "3",
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}],
    }
    assert await works(client)


async def test_a_pinned_version_is_asked_for_and_named(client: RawClient) -> None:
    reply = await client.ask(http(floats(1), path="/v2/models/ident_f32/versions/1/infer"))
    assert reply.json["model_version"] == "1"
    missing = await client.ask(http(floats(1), path="/v2/models/ident_f32/versions/9/infer"))
    assert missing.status == 404
    assert "'9'" in missing.error


async def test_headers_reach_the_core(core: EchoCore, client: RawClient) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = http(floats(1), "X-Request-Id: r-1", f"traceparent: {parent}", "Headrace-Timeout-Ms: 500")
    reply = await client.ask(sent)
    assert reply.headers["x-request-id"] == "r-1"
    request = core.requests[0]
    assert (request.request_id, request.traceparent) == ("r-1", parent)
    assert request.deadline_s - asyncio.get_running_loop().time() < 1


@pytest.mark.parametrize("value", ["a b", "é", "x" * 129, ""])
async def test_a_request_id_that_cannot_be_echoed_is_replaced(client: RawClient, value: str) -> None:
    reply = await client.ask(http(floats(1), f"x-request-id: {value}"))
    assert reply.status == 200
    assert reply.headers["x-request-id"] != value


@pytest.mark.parametrize("value", ["", "00-short-01", "00-" + "g" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_malformed_traceparent_is_dropped(core: EchoCore, client: RawClient, value: str) -> None:
    assert (await client.ask(http(floats(1), f"traceparent: {value}"))).status == 200
    assert core.requests[0].traceparent == ""


async def test_request_ids_of_ours_are_unique(client: RawClient) -> None:
    seen = {(await client.ask(http(floats(1)))).headers["x-request-id"] for _ in range(20)}
    assert len(seen) == 20


@pytest.mark.parametrize("path", ["team%2Fmodel.v2%20%C3%A9", "team%2fmodel%2Ev2%20%c3%a9"])
async def test_a_model_name_may_hold_dots_spaces_and_encoded_slashes(client: RawClient, path: str) -> None:
    reply = await client.ask(http(floats(1), path=f"/v2/models/{path}/infer"))
    assert reply.json["model_name"] == "team/model.v2 é"
    assert (await client.ask(get(f"/v2/models/{path}"))).json["name"] == "team/model.v2 é"


@pytest.mark.parametrize("name", ["a%00b", "a%0Ab", "%FF%FE", "%7f", "%20", "x" * 129])
async def test_a_name_that_is_none_is_refused_and_the_connection_lives(client: RawClient, name: str) -> None:
    reply = await client.ask(http(floats(1), path=f"/v2/models/{name}/infer"))
    assert reply.status == 400
    assert "model name" in reply.error
    # To Starlette's router a path with a line break is no path at all.
    assert (await client.ask(get(f"/v2/models/{name}/ready"))).status in (400, 404)
    assert await works(client)


async def test_a_query_and_an_absolute_target_name_the_same_model(client: RawClient) -> None:
    for path in ("/v2/models/ident_f32/infer?x=/y", "http://host/v2/models/ident_f32/infer"):
        assert (await client.ask(http(floats(1), path=path))).status == 200


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"42", b'{"inputs":{}}', b'{"inputs":[{"name":"IN"}]}'])
async def test_a_malformed_body_is_400_in_json_and_the_connection_lives(client: RawClient, body: bytes) -> None:
    reply = await client.ask(http(body))
    assert reply.status == 400
    assert reply.error
    assert reply.headers["headrace-error"] == "invalid-input"
    assert "Traceback" not in reply.error
    assert await works(client)


async def test_an_unknown_model_is_404(client: RawClient) -> None:
    reply = await client.ask(http(floats(1), path="/v2/models/nobody/infer"))
    assert reply.status == 404
    assert reply.headers["headrace-error"] == "not-found"
    assert "'nobody'" in reply.error


async def test_our_own_state_says_when_to_come_back(core: EchoCore, client: RawClient) -> None:
    core.refusal = QueueFull("the queue is full", retry_after_s=7)
    reply = await client.ask(http(floats(1)))
    assert reply.status == 503
    assert reply.headers["retry-after"] == "7"
    assert reply.headers["headrace-error"] == "queue-full"


async def test_a_wrong_key_is_401_with_a_challenge(client: RawClient) -> None:
    reply = await client.ask(http(floats(1), "Authorization: Bearer wrong"))
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"


async def test_an_unknown_service_is_404(client: RawClient) -> None:
    assert (await client.ask(http(floats(1), "Headrace-Service: other"))).status == 404


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", ""])
async def test_a_deadline_that_is_none_is_refused(client: RawClient, value: str) -> None:
    reply = await client.ask(http(floats(1), f"Headrace-Timeout-Ms: {value}"))
    assert reply.status == 400
    assert "Headrace-Timeout-Ms" in reply.error


async def test_a_fault_of_ours_is_500_with_the_request_id_and_no_detail(core: EchoCore, client: RawClient) -> None:
    core.refusal = RuntimeError("secret detail")
    reply = await client.ask(http(floats(1)))
    assert reply.status == 500
    assert reply.headers["x-request-id"] in reply.error
    assert "secret" not in reply.error
    core.refusal = None
    assert await works(client)


@pytest.mark.parametrize("name", ["Inference-Header-Content-Length", "Headrace-Timeout-Ms", "Authorization"])
async def test_two_copies_of_a_header_are_refused_by_name(client: RawClient, name: str) -> None:
    reply = await client.ask(http(floats(1), f"{name}: 5", f"{name}: 6"))
    assert reply.status == 400
    assert name in reply.error
    assert await works(client)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
async def test_an_encoded_body_is_refused_by_name(client: RawClient, encoding: str) -> None:
    reply = await client.ask(http(floats(1), f"Content-Encoding: {encoding}"))
    assert reply.status == 400
    assert encoding in reply.error
    assert await works(client)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_another_method_on_infer_is_405_with_allow(client: RawClient, method: str) -> None:
    client.send(http(method=method))
    reply = await client.read(is_head=method == "HEAD")
    assert reply.status == 405
    assert reply.headers["allow"] == "POST"
    assert await works(client)


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


@pytest.mark.parametrize("head", [("Authorization: a", "Authorization: b"), ("Content-Encoding: gzip",)])
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


# ------------------------------------------------------------------ pipelining


async def test_pipelined_requests_of_all_kinds_are_answered_in_order(core: EchoCore, client: RawClient) -> None:
    parts = []
    for at in range(40):
        parts += [
            http(floats(at, id=f"a{at}")),
            get("/v2/health/live"),
            http(b"{"),
            get("/nowhere"),
            http(floats(at, id=f"b{at}")),
        ]
    client.send(b"".join(parts))
    for at in range(40):
        assert (await client.read()).json["id"] == f"a{at}"
        assert (await client.read()).json == {"live": True}
        assert (await client.read()).status == 400
        assert (await client.read()).status == 404
        assert (await client.read()).json["id"] == f"b{at}"
    assert await works(client)


async def test_a_thousand_pipelined_bad_requests_are_a_thousand_answers(client: RawClient) -> None:
    client.send(http(b"{") * 1000)
    for _ in range(1000):
        assert (await client.read()).status == 400
    assert await works(client)


async def test_a_request_behind_one_that_waits_is_not_started_before_it(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    client.send(http(floats(1, id="first")) + http(floats(2, id="second")))
    await until(lambda: core.held)
    assert len(core.requests) == 1
    core.held[0].answer()
    assert (await client.read()).json["id"] == "first"
    await until(lambda: len(core.held) == 2)
    core.held[1].answer()
    assert (await client.read()).json["id"] == "second"


async def test_rubbish_behind_a_request_is_answered_after_it(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    client.send(http(floats(1, id="first")) + b"RUBBISH\r\n\r\n")
    await until(lambda: core.held)
    core.held[0].answer()
    assert (await client.read()).json["id"] == "first"
    assert (await client.read()).status == 400
    assert await client.is_closed()


async def test_a_large_body_pipelined_behind_a_waiting_request_arrives_whole(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    raw = bytes(300_000)
    client.send(http(floats(1, id="first")))
    client.send(http(raw, "Inference-Header-Content-Length: 0", path="/v2/models/flat_uint8/infer"))
    await until(lambda: core.held)
    core.held[0].answer()
    assert (await client.read()).json["id"] == "first"
    await until(lambda: len(core.held) == 2)
    core.held[1].answer()
    assert (await client.read()).body.endswith(raw)


# ------------------------------------------------------------------ callers that leave or dawdle


async def test_a_caller_that_leaves_cancels_its_request(core: EchoCore, door: HttpDoor, client: RawClient) -> None:
    core.is_holding = True
    client.send(http(floats(1)) + http(floats(2)))
    await until(lambda: core.held)
    client.writer.close()
    await until(lambda: core.held[0].is_cancelled)
    await until(lambda: door.doorway.counters.num_connections == 0)
    assert len(core.requests) == 1
    assert door.doorway.counters.requests == {("ident_f32", "cancelled"): 1}
    assert door.doorway.counters.num_in_flight == 0


async def test_a_caller_that_leaves_in_mid_body_leaves_nothing_behind(door: HttpDoor, client: RawClient) -> None:
    client.send(http(b"", "Content-Length: 300000") + bytes(200_000))
    await until(lambda: door.doorway.receiving_bytes)
    client.writer.transport.abort()
    await until(lambda: door.doorway.counters.num_connections == 0)
    assert door.doorway.receiving_bytes == 0
    assert door.doorway.counters.num_in_flight == 0


async def test_a_caller_that_does_not_read_is_not_read_from(core: EchoCore, door: HttpDoor, client: RawClient) -> None:
    raw = http(bytes(300_000), "Inference-Header-Content-Length: 0", path="/v2/models/flat_uint8/infer")
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        client.send(raw)
    connection = next(iter(door._state.connections))
    await until(lambda: connection.flow.write_paused and connection.flow.read_paused)
    num_begun = len(core.requests)
    await asyncio.sleep(0.2)
    assert len(core.requests) == num_begun < 200
    assert connection.transport.get_write_buffer_size() < 1_000_000
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(200):
        assert len((await client.read()).body) > 300_000


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SILENT_S", 2)
    monkeypatch.setattr(turns, "IDLE_S", 2)


def pass_time(door: HttpDoor, seconds: int) -> None:
    for _ in range(seconds):
        door.doorway.tick += 1
        for connection in door._connections():
            connection.sweep()


@pytest.mark.usefixtures("fast_clock")
async def test_a_caller_silent_in_mid_request_is_408_and_closed(door: HttpDoor, client: RawClient) -> None:
    client.send(http(b"", "Content-Length: 100") + b"{")
    await until(lambda: any(c.is_mid_message for c in door._connections()))
    pass_time(door, 4)
    reply = await client.read()
    assert reply.status == 408
    assert await client.is_closed()
    assert door.doorway.counters.num_cut_off == 1


@pytest.mark.usefixtures("fast_clock")
async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(core: EchoCore, door: HttpDoor) -> None:
    async with RawClient(door.port) as idle, RawClient(door.port) as waiting:
        assert await works(idle)
        core.is_holding = True
        waiting.send(http(floats(1)))
        await until(lambda: core.held)
        pass_time(door, 5)
        assert await idle.is_closed()
        core.held[0].answer()
        assert (await waiting.read()).status == 200


@pytest.mark.usefixtures("fast_clock")
async def test_a_caller_that_never_reads_its_answer_is_cut_off(door: HttpDoor, client: RawClient) -> None:
    raw = http(bytes(300_000), "Inference-Header-Content-Length: 0", path="/v2/models/flat_uint8/infer")
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(60):
        client.send(raw)
    connection = next(iter(door._state.connections))
    await until(lambda: connection.flow.write_paused and connection.flow.read_paused)
    await asyncio.sleep(0.1)
    pass_time(door, 6)
    await until(lambda: door.doorway.counters.num_connections == 0)
    assert door.doorway.counters.num_cut_off == 1


# ------------------------------------------------------------------ draining


async def test_a_draining_door_finishes_what_it_accepted_and_takes_no_more(core: EchoCore, door: HttpDoor) -> None:
    core.is_holding = True
    async with RawClient(door.port) as busy, RawClient(door.port) as idle:
        busy.send(http(floats(1, id="accepted")))
        await until(lambda: core.held)
        draining = asyncio.create_task(door.drain(10))
        await until(lambda: door.doorway.is_draining)
        assert (await idle.ask(get("/v2/health/ready"))).status == 503
        assert await idle.is_closed()
        await until(lambda: not door._server or not door._server.is_serving())
        core.held[0].answer()
        reply = await busy.read()
        assert reply.json["id"] == "accepted"
        assert reply.headers["connection"] == "close"
        assert await busy.is_closed()
        assert await draining == 0
    with pytest.raises(OSError, match=r"Connect|connect"):
        async with RawClient(door.port):
            pass


async def test_a_request_that_comes_while_draining_is_answered_and_told_to_go(core: EchoCore, door: HttpDoor) -> None:
    async with RawClient(door.port) as client:
        assert await works(client)
        draining = asyncio.create_task(door.drain(4))
        await until(lambda: door.doorway.is_draining)
        reply = await client.ask(http(floats(1)))
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await draining == 0


async def test_idle_connections_do_not_hold_up_a_drain(door: HttpDoor) -> None:
    async with RawClient(door.port) as client:
        assert await works(client)
        assert await door.drain(2) == 0
        assert await client.is_closed()


async def test_a_port_that_is_taken_leaves_nothing_open(core: EchoCore, door: HttpDoor) -> None:
    other = HttpDoor(core, identify, GatewaySettings(http_port=0, metrics_port=door.port), numbers)
    with pytest.raises(OSError, match="address already in use"):
        await other.start()


async def test_an_answer_that_cannot_be_json_is_400_and_says_what_to_ask_for(client: RawClient) -> None:
    raw = struct.pack("<I", 2) + b"\xff\xfe"
    tensor = {"name": "IN", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    text = json.dumps({"inputs": [tensor]}).encode()
    reply = await client.ask(
        http(text + raw, f"Inference-Header-Content-Length: {len(text)}", path="/v2/models/ident_bytes/infer")
    )
    assert reply.status == InvalidInput.http_status
    assert "binary_data" in reply.error
    assert await works(client)
