"""Everything on the HTTP door but infer: health, metadata, errors, `/metrics`."""

from __future__ import annotations

import re

import pytest

from gateway.http.server import HttpDoor
from tests.support.http_kit import EchoCore, RawClient, floats, get, http


async def test_the_server_names_itself_and_only_what_it_has(client: RawClient) -> None:
    reply = await client.ask(get("/v2"))
    assert reply.json == (await client.ask(get("/v2/"))).json
    assert reply.json["name"] == "headrace"
    assert reply.json["version"]
    assert set(reply.json["extensions"]) == {
        "binary_tensor_data",
        "classification",
        "model_configuration",
        "schedule_policy",
        "model_repository",
        "statistics",
    }


async def test_live_stays_live_where_ready_is_not(core: EchoCore, client: RawClient) -> None:
    assert (await client.ask(get("/v2/health/ready"))).json == {"ready": True}
    core.is_ready = False
    reply = await client.ask(get("/v2/health/ready"))
    assert reply.status == 503
    assert reply.headers["retry-after"]
    assert (await client.ask(get("/v2/health/live"))).json == {"live": True}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/ident_f32/ready", 200),
        ("/v2/models/ident_f32/versions/1/ready", 200),
        ("/v2/models/ident_f32/versions/9/ready", 404),
        ("/v2/models/loading/ready", 503),
        ("/v2/models/nobody/ready", 404),
        ("/v2/models/ident_f32", 200),
        ("/v2/models/ident_f32/versions/3", 200),
        ("/v2/models/ident_f32/versions/9", 404),
        ("/v2/models/ident_f32/config", 200),
        ("/v2/models/ident_f32/versions/3/config", 200),
        ("/v2/models/nobody/config", 404),
    ],
)
async def test_model_routes_say_what_is_there(client: RawClient, path: str, status: int) -> None:
    reply = await client.ask(get(path))
    assert reply.status == status
    if status != 200:
        assert reply.error
        assert reply.headers["headrace-error"] in ("not-found", "model-not-ready")


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v2//",
        "/v2/models",
        "/v2/models/",
        "/v2/models/a/b",
        "/v2/models/a/versions//ready",
        "/v2/models/a/ready/",
    ],
)
async def test_an_unknown_path_is_404_in_json(client: RawClient, path: str) -> None:
    reply = await client.ask(get(path))
    assert reply.status == 404
    assert reply.error
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v2", "/v2/health/live", "/v2/models/ident_f32", "/v2/models/ident_f32/config"])
async def test_another_method_is_405_with_allow(client: RawClient, path: str) -> None:
    reply = await client.ask(http(b"{}", path=path))
    assert reply.status == 405
    assert {m.strip() for m in reply.headers["allow"].split(",")} == {"GET", "HEAD", "OPTIONS"}
    assert "POST" in reply.error


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v2", "GET, HEAD, OPTIONS"),
        ("/v2/models/ident_f32", "GET, HEAD, OPTIONS"),
        ("/v2/models/nobody/versions/7/config", "GET, HEAD, OPTIONS"),
        ("/v2/models/ident_f32/infer", "POST, OPTIONS"),
    ],
)
async def test_options_says_what_a_path_takes(client: RawClient, path: str, allowed: str) -> None:
    reply = await client.ask(http(path=path, method="OPTIONS"))
    assert reply.status == 204
    assert reply.headers["allow"] == allowed
    assert (await client.ask(http(path="/nowhere", method="OPTIONS"))).status == 404
    assert (await client.ask(get("/v2/health/live"))).status == 200


@pytest.mark.parametrize("path", ["/v2", "/v2/models/ident_f32", "/v2/health/ready"])
async def test_head_is_get_without_a_body(client: RawClient, path: str) -> None:
    client.send(http(path=path, method="HEAD"))
    reply = await client.read(is_head=True)
    assert reply.status == 200
    assert int(reply.headers["content-length"]) > 0
    assert (await client.ask(get("/v2/health/live"))).status == 200


@pytest.mark.parametrize("path", ["/v2/models/a%00b", "/v2/models/a%00b/infer", "/v2/models/%ff/ready"])
async def test_a_name_that_is_none_is_400_in_the_same_words_everywhere(client: RawClient, path: str) -> None:
    reply = await client.ask(http(path=path, method="POST" if path.endswith("infer") else "GET"))
    assert reply.status == 400
    assert reply.error.startswith("model name ")


async def test_a_key_is_asked_for_where_models_are_told_and_not_for_health(client: RawClient) -> None:
    wrong = "Authorization: Bearer wrong"
    assert (await client.ask(get("/v2/models/ident_f32", wrong))).status == 401
    assert (await client.ask(get("/v2/health/live", wrong))).status == 200


async def test_a_request_id_is_echoed_on_every_route(client: RawClient) -> None:
    for path in ("/v2", "/nowhere", "/v2/models/nobody"):
        assert (await client.ask(get(path, "X-Request-ID: mine-1"))).headers["x-request-id"] == "mine-1"


# ------------------------------------------------------------------ metrics


async def scrape(door: HttpDoor) -> tuple[str, dict[str, float]]:
    async with RawClient(door.metrics_port) as client:
        reply = await client.ask(get("/metrics"))
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return text, {name: float(value) for name, _, value in lines}


async def test_metrics_count_requests_by_model_and_code(door: HttpDoor, client: RawClient) -> None:
    for body in (floats(1), floats(2), b"{"):
        await client.ask(http(body))
    await client.ask(http(floats(1), path="/v2/models/nobody/infer"))
    _, found = await scrape(door)
    assert found['headrace_http_requests_total{code="ok",model="ident_f32"}'] == 2
    assert found['headrace_http_requests_total{code="invalid-input",model="ident_f32"}'] == 1
    assert found['headrace_http_requests_total{code="not-found",model=""}'] == 1
    assert found["headrace_http_in_flight"] == 0
    assert found["headrace_http_connections"] == 1
    assert found["headrace_http_request_duration_seconds_count"] == 4
    assert found['headrace_http_request_duration_seconds_bucket{le="+Inf"}'] == 4
    assert found["headrace_http_request_duration_seconds_sum"] > 0


async def test_metrics_have_tritons_names_for_what_workers_did(door: HttpDoor) -> None:
    text, found = await scrape(door)
    labels = '{group="default",model="m",version="1",worker="w1"}'
    assert found[f"nv_inference_request_success{labels}"] == 3
    assert found[f"nv_inference_count{labels}"] == 12
    assert found[f"nv_inference_exec_count{labels}"] == 2
    assert found[f"nv_inference_request_duration_us{labels}"] == 120
    assert "# TYPE nv_inference_request_success counter" in text
    assert "nv_inference_request_success_total" not in text


async def test_metrics_show_the_gateway_and_its_process(door: HttpDoor) -> None:
    text, found = await scrape(door)
    assert found["headrace_messages_total"] == 5
    assert found["headrace_held_bytes"] == 9
    assert found["process_resident_memory_bytes"] > 0
    assert "# HELP headrace_messages_total Messages published" in text


async def test_every_metric_is_described_once_and_has_a_legal_name(door: HttpDoor) -> None:
    text, _ = await scrape(door)
    described = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(described) == len(set(described))
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", name) for name in described)


async def test_metrics_are_not_on_the_public_port(client: RawClient) -> None:
    assert (await client.ask(get("/metrics"))).status == 404
