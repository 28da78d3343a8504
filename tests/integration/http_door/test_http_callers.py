"""Callers that pipeline, leave, dawdle or do not read, and doors that drain."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from contract.errors import InvalidInput
from gateway.http import turns
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore, RawClient, floats, get, http, identify, numbers, works
from tests.support.waiting import until

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
@pytest.mark.interpreted
async def test_a_caller_silent_in_mid_request_is_408_and_closed(door: HttpDoor, client: RawClient) -> None:
    client.send(http(b"", "Content-Length: 100") + b"{")
    await until(lambda: any(c.is_mid_message for c in door._connections()))
    pass_time(door, 4)
    reply = await client.read()
    assert reply.status == 408
    assert await client.is_closed()
    assert door.doorway.counters.num_cut_off == 1


@pytest.mark.usefixtures("fast_clock")
@pytest.mark.interpreted
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
@pytest.mark.interpreted
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
