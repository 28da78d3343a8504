"""The model repository over HTTP: who may, what is asked, what is refused; with tritonclient and byte by byte."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from contract.errors import ModelFailed, NotFound, NotSupported
from contract.principal import Principal
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings
from tests.support.http_kit import HOST, EchoCore, RawClient, get, http, numbers, open_door

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/ident_f32/load"
UNLOAD = "/v2/repository/models/ident_f32/unload"


async def in_thread(door: HttpDoor, use: Callable[[triton.InferenceServerClient], Any]) -> Any:
    """Run the synchronous client beside our loop."""

    def run() -> Any:
        with triton.InferenceServerClient(f"{HOST}:{door.port}", network_timeout=20) as client:
            return use(client)

    return await asyncio.to_thread(run)


def asking(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


# ------------------------------------------------------------------ tritonclient


async def test_tritonclient_reads_the_index(core: EchoCore, door: HttpDoor) -> None:
    found = await in_thread(door, lambda client: client.get_model_repository_index())
    assert found == [
        {"name": "ident_f32", "version": "1", "state": "READY"},
        {"name": "ident_f32", "version": "2", "state": "UNAVAILABLE", "reason": "no such file"},
        {"name": "never"},
    ]
    assert core.repository.asked == [("index", "", False)]


async def test_tritonclient_loads_and_unloads(core: EchoCore, door: HttpDoor) -> None:
    def use(client: triton.InferenceServerClient) -> None:
        client.load_model("ident_f32")
        client.load_model("ident_f32", headers={"Headrace-Service": "other"})
        client.unload_model("ident_f32")
        client.unload_model("ident_f32", unload_dependents=True)

    await in_thread(door, use)
    assert core.repository.asked == [
        ("load", "ident_f32", "", None, None),
        ("load", "ident_f32", "other", None, None),
        ("unload", "ident_f32", "", False),
        ("unload", "ident_f32", "", True),
    ]


async def test_tritonclient_sends_a_config_and_files(core: EchoCore, door: HttpDoor) -> None:
    files = {"file:1/model.onnx": bytes(range(256)) * 100, "file:2/data/x.bin": b""}
    config = json.dumps({"max_batch_size": 4})
    await in_thread(door, lambda client: client.load_model("new", config=config, files=files))
    sent = {"1/model.onnx": files["file:1/model.onnx"], "2/data/x.bin": b""}
    assert core.repository.asked == [("load", "new", "", config, sent)]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (NotSupported("loading on request needs model_control_mode: explicit"), "501"),
        (NotFound("model 'x' is not known"), "404"),
        (ModelFailed("version 1: the file is no ONNX model"), "500"),
    ],
)
async def test_tritonclient_tells_why_a_load_is_refused(
    core: EchoCore, door: HttpDoor, refusal: Exception, status: str
) -> None:
    core.repository.refusal = refusal  # type: ignore[assignment]
    with pytest.raises(InferenceServerException, match=str(refusal)) as caught:
        await in_thread(door, lambda client: client.load_model("x"))
    assert caught.value.status() == status


# ------------------------------------------------------------------ byte by byte


async def test_the_index_can_be_of_what_serves(core: EchoCore, client: RawClient) -> None:
    reply = await client.ask(http(asking(ready=True), path=INDEX))
    assert reply.json == [{"name": "ident_f32", "version": "1", "state": "READY"}]
    assert (await client.ask(http(b"", path=INDEX))).status == 200


async def test_a_model_name_may_hold_a_slash(core: EchoCore, client: RawClient) -> None:
    assert (await client.ask(http(b"{}", path="/v2/repository/models/team%2Fa%20b/load"))).status == 200
    assert core.repository.asked == [("load", "team/a b", "", None, None)]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (INDEX, b"[]", "object"),
        (INDEX, b"{", "JSON"),
        (INDEX, asking(ready="yes"), "'ready'"),
        (LOAD, asking(parameters=[]), "'parameters'"),
        (LOAD, asking(parameters={"config": {}}), "'config'"),
        (LOAD, asking(parameters={"file:1/model.onnx": "%%%"}), "base64"),
        (LOAD, asking(parameters={"file:1/model.onnx": "é"}), "base64"),
        (LOAD, asking(parameters={"file:1/model.onnx": 7}), "'file:1/model.onnx'"),
        (LOAD, asking(parameters={"speed": 7}), "'speed'"),
        (UNLOAD, asking(parameters={"unload_dependents": 1}), "'unload_dependents'"),
        (UNLOAD, asking(parameters={"force": True}), "'force'"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_done(
    core: EchoCore, client: RawClient, path: str, body: bytes, words: str
) -> None:
    reply = await client.ask(http(body, path=path))
    assert reply.status == 400
    assert words in reply.error
    assert core.repository.asked == []


async def test_files_may_be_larger_than_other_json_but_not_than_a_request(core: EchoCore) -> None:
    content = base64.b64encode(bytes(200_000)).decode()
    door = await open_door(core, max_request_bytes=400_000, max_json_bytes=200_000)
    try:
        async with RawClient(door.port) as client:
            body = asking(parameters={"config": "{}", "file:1/m": content})
            assert (await client.ask(http(body, path=LOAD))).status == 200
            assert (await client.ask(http(body, path=UNLOAD))).status == 413
            body = asking(parameters={"config": "{}", "file:1/m": content * 2})
            assert (await client.ask(http(body, path=LOAD))).status == 413
    finally:
        await door.close()
    assert len(core.repository.asked) == 1


@pytest.mark.parametrize("path", [INDEX, LOAD, UNLOAD])
async def test_another_method_is_405(client: RawClient, path: str) -> None:
    reply = await client.ask(get(path))
    assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")


async def test_loading_needs_the_role_admin_and_reading_the_index_a_key(core: EchoCore) -> None:
    def identify(authorization: str | None) -> Principal:
        role = (authorization or "").removeprefix("Bearer ")
        return Principal("acme", role, frozenset({role}), default_service="theirs")  # type: ignore[arg-type]

    door = HttpDoor(core, identify, GatewaySettings(http_port=0, metrics_port=0), numbers)
    await door.start()
    try:
        async with RawClient(door.port) as client:
            for path in (LOAD, UNLOAD):
                reply = await client.ask(http(b"{}", "Authorization: Bearer infer", path=path))
                assert (reply.status, reply.headers["headrace-error"]) == (403, "forbidden")
                assert "'admin'" in reply.error
            assert core.repository.asked == []
            assert (await client.ask(http(b"{}", "Authorization: Bearer infer", path=INDEX))).status == 200
            assert (await client.ask(http(b"{}", "Authorization: Bearer admin", path=LOAD))).status == 200
            assert core.repository.asked == [("index", "theirs", False), ("load", "ident_f32", "theirs", None, None)]
    finally:
        await door.close()
