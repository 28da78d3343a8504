"""Endpoints whose requests may carry an `Idempotency-Key`: the request runs once, each retry gets its answer.

A request with a key runs to its end although its caller leaves: the retry wants its answer.
Without the header an endpoint is called as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from contract.errors import NotSupported
from gateway.http.front import Front
from gateway.idempotency.keys import Keys, Taken, code_of
from gateway.idempotency.walk import check_key, fingerprint, token

KEY: Final = "idempotency-key"
REPLAYED: Final = "idempotent-replayed"
_MEANING: Final = (
    "headrace-service",
    "headrace-model-version",
    "inference-header-content-length",
    "content-encoding",
    "prefer",
)
"""Headers that make it another request."""
_OWN: Final = frozenset({"content-length", "connection", "x-request-id"})
"""Headers of an answer that belong to one response, not to the next."""

Endpoint = Callable[[Request], Awaitable[Response]]
TimeoutOf = Callable[[Request], float]


class Once:
    """Wraps endpoints."""

    def __init__(self, front: Front, keys: Keys | None) -> None:
        self._front = front
        self._keys = keys

    def wrap(self, endpoint: Endpoint, timeout_s: TimeoutOf) -> Endpoint:
        """`endpoint`, for requests with and without a key; `timeout_s` is how long it may take to answer one."""

        async def wrapped(request: Request) -> Response:
            values = request.headers.getlist(KEY)
            if not values:
                return await endpoint(request)
            return await self._once(request, endpoint, check_key(values), timeout_s(request))

        return wrapped

    async def _once(self, request: Request, endpoint: Endpoint, key: str, timeout_s: float) -> Response:
        if self._keys is None:
            raise NotSupported("this gateway keeps no idempotency keys")
        tenant = self._front.principal(request).tenant
        body = await self._front.body(request)
        found = await self._keys.take(token(tenant, key), _fingerprint(request, body), timeout_s)
        if not isinstance(found, Taken):
            return self._front.answer(request, found.body, found.status, {**found.headers, REPLAYED: "true"})
        try:
            response = await endpoint(_again(request, body))
        except Exception as e:
            await self._keys.settle(found, code_of(e), 0, {}, b"")
            raise
        headers = {name: value for name, value in response.headers.items() if name not in _OWN}
        code = response.headers.get("headrace-error", "")
        await self._keys.settle(found, code, response.status_code, headers, bytes(response.body))
        return response


def _fingerprint(request: Request, body: bytes) -> bytes:
    headers = [request.headers.get(name, "").encode("latin-1") for name in _MEANING]
    return fingerprint(request.scope["raw_path"], *headers, body)


def _again(request: Request, body: bytes) -> Request:
    """The request with its body before it, and a caller that never leaves; its deadline ends it."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    never = asyncio.Event()

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await never.wait()
        return {"type": "http.disconnect"}

    return Request(request.scope, receive)
