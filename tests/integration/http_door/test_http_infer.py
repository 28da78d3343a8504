"""The infer route over HTTP: what reaches the core, what is refused and how, on connections that stay usable."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from contract.errors import ModelFailed, QueueFull
from tests.support.http_kit import EchoCore, RawClient, floats, get, http, works

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


async def test_a_failed_request_leaves_one_log_line_without_its_payload_or_key(
    core: EchoCore, client: RawClient
) -> None:
    core.refusal = ModelFailed("it met 4.25")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with capture_logs() as events:
        await client.ask(http(floats(4.25, id="mine"), "x-request-id: r-1", f"traceparent: {parent}"))
        core.refusal = None
        assert await works(client)
    (event,) = [event for event in events if event["event"] == "request-failed"]
    assert (event["log_level"], event["code"], event["status"]) == ("warning", "model-failed", 500)
    assert (event["request_id"], event["caller_id"], event["traceparent"]) == ("r-1", "mine", parent)
    assert (event["tenant"], event["model"]) == ("default", "ident_f32")
    assert "4.25" not in str(event)


@pytest.mark.parametrize("name", ["Inference-Header-Content-Length", "Headrace-Timeout-Ms", "Authorization"])
async def test_two_copies_of_a_header_are_refused_by_name(client: RawClient, name: str) -> None:
    reply = await client.ask(http(floats(1), f"{name}: 5", f"{name}: 6"))
    assert reply.status == 400
    assert name in reply.error
    assert await works(client)


@pytest.mark.parametrize("encoding", ["zstd", "br", "deflate, gzip"])
async def test_an_encoding_that_is_not_supported_is_refused_by_name(client: RawClient, encoding: str) -> None:
    reply = await client.ask(http(floats(1), f"Content-Encoding: {encoding}"))
    assert reply.status == 400
    assert encoding in reply.error
    assert await works(client)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
async def test_another_method_on_infer_is_405_with_allow(client: RawClient, method: str) -> None:
    client.send(http(method=method))
    reply = await client.read(is_head=method == "HEAD")
    assert reply.status == 405
    assert reply.headers["allow"] == "POST, OPTIONS"
    assert await works(client)
