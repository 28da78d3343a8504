"""HEAD, OPTIONS and wrong methods on every route there is."""

from __future__ import annotations

import pytest

from gateway.http.operations import OPERATIONS
from tests.support.http_kit import RawClient, get, http, works

PATHS = sorted({operation.path for operation in OPERATIONS})
NAMES = {"{model}": "ident_f32", "{version}": "1", "{id}": "none", "{region}": "r"}


def reachable(path: str) -> str:
    for name, value in NAMES.items():
        path = path.replace(name, value)
    return path


def allowed(path: str) -> set[str]:
    methods = {operation.method for operation in OPERATIONS if operation.path == path}
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def said(value: str) -> set[str]:
    return {method.strip() for method in value.split(",")}


@pytest.mark.parametrize("path", PATHS)
async def test_options_and_wrong_methods_say_what_is_allowed(client: RawClient, path: str) -> None:
    options = await client.ask(http(path=reachable(path), method="OPTIONS"))
    assert (options.status, options.body) == (204, b"")
    assert said(options.headers["allow"]) == allowed(path)
    for method in sorted({"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - allowed(path)):
        reply = await client.ask(http(b"{}", path=reachable(path), method=method))
        assert reply.status == 405
        assert said(reply.headers["allow"]) == allowed(path)
        assert repr(method) in str(reply.json["error"])
    assert await works(client)


@pytest.mark.parametrize("path", [path for path in PATHS if "HEAD" in allowed(path)])
async def test_head_says_what_get_would(client: RawClient, path: str) -> None:
    whole = await client.ask(get(reachable(path), "x-request-id: same"))
    client.send(http(path=reachable(path), method="HEAD"))
    head = await client.read(is_head=True)
    assert head.status == whole.status
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert await works(client)


async def test_options_of_the_server_as_a_whole_does_no_harm(client: RawClient) -> None:
    reply = await client.ask(http(path="*", method="OPTIONS"))
    assert reply.status in (204, 404)
    assert await works(client)
