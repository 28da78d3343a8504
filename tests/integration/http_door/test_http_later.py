"""Infer requests answered later: `Prefer: respond-async` and `/v1/requests/{id}`."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from contract.errors import ModelFailed, QueueFull, Unauthenticated
from contract.principal import Principal
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore, RawClient, floats, get, http, numbers, open_door, works
from tests.support.waiting import until

ASYNC = "Prefer: respond-async"


async def accepted(core: EchoCore, client: RawClient, *headers: str, value: float = 1) -> str:
    """Where the answer of a request will be that the core holds."""
    core.is_holding = True
    reply = await client.ask(http(floats(value, id="mine"), ASYNC, *headers))
    assert reply.status == 202
    assert reply.headers["preference-applied"] == "respond-async"
    assert reply.json == {"id": reply.headers["location"].rpartition("/")[2], "state": "running"}
    return reply.headers["location"]


def delete(path: str, *headers: str) -> bytes:
    return http(b"", *headers, path=path, method="DELETE")


async def test_the_answer_is_where_location_says_once_it_is_there(core: EchoCore, client: RawClient) -> None:
    where = await accepted(core, client, "x-request-id: r-7")
    for _ in range(2):
        reply = await client.ask(get(where))
        assert (reply.status, reply.headers["headrace-request-state"]) == (202, "running")
        assert reply.headers["retry-after"] == "1"
    core.held[0].answer()
    for _ in range(2):
        reply = await client.ask(get(where))
        assert (reply.status, reply.headers["headrace-request-state"]) == (200, "finished")
        assert reply.json["id"] == "mine"
        assert reply.json["outputs"][0]["data"] == [1]
        assert reply.headers["x-request-id"] == "r-7"
    client.send(http(path=where, method="HEAD"))
    assert (await client.read(is_head=True)).status == 200
    core.is_holding = False
    assert await works(client)


async def test_the_caller_may_leave_in_between(core: EchoCore, door: HttpDoor) -> None:
    async with RawClient(door.port) as first:
        where = await accepted(core, first)
    async with RawClient(door.port) as second:
        assert not core.held[0].is_cancelled
        core.held[0].answer()
        assert (await second.ask(get(where))).status == 200


async def test_a_failure_is_kept_with_its_status_code_and_text(core: EchoCore, client: RawClient) -> None:
    where = await accepted(core, client)
    core.held[0]._end(ModelFailed("it raised"))
    reply = await client.ask(get(where))
    assert reply.status == 500
    assert reply.error == "it raised"
    assert reply.headers["headrace-error"] == "model-failed"
    assert reply.headers["headrace-request-state"] == "finished"


async def test_a_binary_answer_is_kept_as_it_is(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    raw = bytes(range(16))
    reply = await client.ask(
        http(raw, ASYNC, "Inference-Header-Content-Length: 0", path="/v2/models/flat_uint8/versions/1/infer")
    )
    core.held[0].answer()
    reply = await client.ask(get(reply.headers["location"]))
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.body[int(reply.headers["inference-header-content-length"]) :] == raw


async def test_a_compressed_request_is_taken_and_its_answer_is_kept_plain(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    body = gzip.compress(floats(*range(2000)))
    reply = await client.ask(http(body, ASYNC, "Content-Encoding: gzip", "Accept-Encoding: gzip"))
    assert reply.status == 202
    await until(lambda: core.held)
    core.held[0].answer()
    reply = await client.ask(get(reply.headers["location"]))
    assert "content-encoding" not in reply.headers
    assert reply.json["outputs"][0]["data"] == list(range(2000))


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"{", "/v2/models/ident_f32/infer", 400),
        (floats(1), "/v2/models/nobody/infer", 404),
        (floats(1), "/v2/models/loading/infer", 503),
        (bytes(400_001), "/v2/models/ident_f32/infer", 413),
    ],
)
async def test_what_is_wrong_shows_at_once(client: RawClient, body: bytes, path: str, status: int) -> None:
    reply = await client.ask(http(body, ASYNC, path=path))
    assert reply.status == status
    assert reply.error
    assert "location" not in reply.headers


async def test_a_refusal_of_the_core_shows_at_once(core: EchoCore, client: RawClient) -> None:
    core.refusal = QueueFull("the queue is full")
    reply = await client.ask(http(floats(1), ASYNC))
    assert (reply.status, reply.headers["headrace-error"]) == (503, "queue-full")


async def test_a_caller_that_would_rather_wait_gets_the_answer_itself(core: EchoCore, client: RawClient) -> None:
    core.is_holding = True
    client.send(http(floats(4), ASYNC + ", wait=20"))
    await until(lambda: core.held)
    core.held[0].answer()
    reply = await client.read()
    assert reply.status == 200
    assert "location" not in reply.headers
    assert reply.json["outputs"][0]["data"] == [4]


async def test_a_caller_that_waits_in_vain_is_told_where_to_look(core: EchoCore, client: RawClient) -> None:
    where = await accepted(core, client, "Prefer: wait=1")
    core.held[0].answer()
    assert (await client.ask(get(where))).status == 200


@pytest.mark.parametrize("preference", ["respond-async, wait=30", "return=minimal"])
async def test_a_caller_that_leaves_while_it_waits_cancels(core: EchoCore, door: HttpDoor, preference: str) -> None:
    core.is_holding = True
    async with RawClient(door.port) as client:
        client.send(http(floats(1), f"Prefer: {preference}"))
        await until(lambda: core.held)
    await until(lambda: core.held[0].is_cancelled)


async def test_another_preference_changes_nothing(client: RawClient) -> None:
    for _ in range(2):
        reply = await client.ask(http(floats(3, id="p"), "Prefer: return=minimal"))
        assert (reply.status, reply.json["id"]) == (200, "p")
        assert "preference-applied" not in reply.headers
    assert await works(client)


async def test_delete_cancels_what_runs_and_then_it_is_gone(core: EchoCore, client: RawClient) -> None:
    where = await accepted(core, client)
    reply = await client.ask(delete(where))
    assert (reply.status, reply.body) == (204, b"")
    assert core.held[0].is_cancelled
    for raw in (get(where), delete(where)):
        reply = await client.ask(raw)
        assert reply.status == 410
        assert "gone" in reply.error


async def test_delete_forgets_a_kept_answer(core: EchoCore, client: RawClient) -> None:
    where = await accepted(core, client)
    core.held[0].answer()
    assert (await client.ask(delete(where))).status == 204
    assert (await client.ask(get(where))).status == 410


async def test_an_id_nobody_gave_is_404(client: RawClient) -> None:
    for raw in (get("/v1/requests/never"), delete("/v1/requests/never")):
        assert (await client.ask(raw)).status == 404
    reply = await client.ask(http(path="/v1/requests/never"))
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, DELETE, OPTIONS")


async def test_another_tenants_request_reads_like_none(core: EchoCore) -> None:
    def identify(authorization: str | None) -> Principal:
        if authorization is None:
            raise Unauthenticated("a key is needed")
        return Principal(authorization.removeprefix("Bearer "), "k")

    door = HttpDoor(core, identify, GatewaySettings(http_port=0, metrics_port=0), numbers)
    await door.start()
    try:
        async with RawClient(door.port) as client:
            where = await accepted(core, client, "Authorization: Bearer acme")
            for raw in (get(where, "Authorization: Bearer other"), delete(where, "Authorization: Bearer other")):
                assert (await client.ask(raw)).status == 404
            assert (await client.ask(get(where))).status == 401
            assert not core.held[0].is_cancelled
            assert (await client.ask(get(where, "Authorization: Bearer acme"))).status == 202
    finally:
        await door.close()


async def test_an_answer_too_large_to_keep_says_so(core: EchoCore) -> None:
    door = await open_door(core, max_async_bytes=1024)
    try:
        async with RawClient(door.port) as client:
            core.is_holding = True
            reply = await client.ask(http(floats(*range(1000)), ASYNC))
            where = reply.headers["location"]
            core.held[0].answer()
            reply = await client.ask(get(where))
            assert reply.status == 413
            assert "1024" in reply.error
    finally:
        await door.close()


async def test_more_than_may_run_are_refused(core: EchoCore) -> None:
    door = await open_door(core, max_async_requests=2)
    try:
        async with RawClient(door.port) as client:
            first = await accepted(core, client)
            await accepted(core, client)
            reply = await client.ask(http(floats(1), ASYNC))
            assert reply.status == 503
            assert reply.headers["retry-after"]
            core.held[0].answer()
            await accepted(core, client)
            assert (await client.ask(get(first))).status == 410
    finally:
        await door.close()


async def test_an_answer_is_gone_when_its_time_is_over(core: EchoCore) -> None:
    door = await open_door(core, async_keep_s=1)
    try:
        async with RawClient(door.port) as client:
            where = await accepted(core, client)
            core.held[0].answer()
            async with asyncio.timeout(15):
                while (reply := await client.ask(get(where))).status == 200:  # noqa: ASYNC110 - polling is what is tested
                    await asyncio.sleep(0.02)
            assert reply.status == 410
    finally:
        await door.close()


async def test_pipelined_requests_of_both_kinds_are_answered_in_order(core: EchoCore, client: RawClient) -> None:
    client.send(b"".join(http(floats(at, id=str(at)), *([ASYNC] if at % 2 else [])) for at in range(20)))
    for at in range(20):
        reply = await client.read()
        assert reply.status == (202 if at % 2 else 200)
        if at % 2 == 0:
            assert reply.json["id"] == str(at)
    assert await works(client)
