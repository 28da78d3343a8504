"""Infer requests that are answered later: `Prefer: respond-async`, and `/v1/requests/{id}`. Decides nothing about them.

    POST …/infer → 202, Location → GET /v1/requests/{id} → 202 while it runs → the answer, with its status
                                 → DELETE cancels or forgets → 410

The exchange is the one of every infer request; only its line ends here instead of at a connection. Answers are kept in
this gateway's memory: they are gone when it stops, and another gateway does not know them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from contract.errors import Cancelled, HeadraceError, NotFound, TooLarge
from gateway.http import headers as h
from gateway.http.doorway import Doorway
from gateway.http.errors import error_body, error_headers
from gateway.http.exchange import Exchange
from gateway.http.front import JSON, Front
from gateway.http.later import GONE, RUNNING, KeptAnswer, Later
from gateway.http.paths import ModelPath
from gateway.http.preferences import parse_preferences
from gateway.settings import GatewaySettings

STATE: Final = "headrace-request-state"
"""Header that tells the status of a kept answer from one of the route itself."""
_GUARD_S: Final = 5.0  # every exchange ends by its deadline; this much later we would rather fail than wait

_monotonic = time.monotonic
OnDone = Callable[[KeptAnswer], None]


class Errand:
    """One infer request without a connection: its exchange's line."""

    def __init__(self, doorway: Doorway, path: ModelPath, found: h.Found, on_done: OnDone) -> None:
        self.answer: KeptAnswer | None = None
        self.done = asyncio.Event()
        self._on_done = on_done
        self._exchange = Exchange(self, doorway, path, found, keep_alive=True)

    def start(self, body: bytes) -> None:
        """Decode it and hand it to the core; it may have ended when this returns."""
        self._exchange.body = body
        self._exchange.is_received = True
        self._exchange.begin()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._exchange.abandon()

    def respond(self, exchange: Exchange, head: bytes, parts: list[bytes | memoryview], num_bytes: int) -> None:  # noqa: ARG002 - a line's words
        """See `exchange.Line`. The parts are copied: they may be views of what a whole message brought."""
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        self.answer = KeptAnswer(int(lines[0].split(" ")[1]), headers, b"".join(parts))
        self._on_done(self.answer)
        self.done.set()


class LaterRequests:
    """The endpoints."""

    def __init__(self, front: Front, settings: GatewaySettings) -> None:
        self._front = front
        self._doorway = front.doorway
        self._later = Later(settings.max_async_requests, settings.max_async_bytes, settings.async_keep_s)
        self._running: dict[str, Errand] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._keep_s = settings.async_keep_s

    async def infer(self, request: Request) -> Response:
        """`POST …/infer` of a caller that has preferences; what it sends is refused or answered as ever."""
        is_async, wait_s = parse_preferences(request.headers.getlist("prefer"))
        tenant = self._front.principal(request).tenant
        body = await self._front.body(request)
        request_id = self._later.open(tenant, _monotonic()) if is_async else ""
        errand = self._errand(request, lambda answer: self._finished(tenant, request_id, answer))
        if is_async:
            self._running[request_id] = errand
        try:
            errand.start(body)
            if not await self._ended(request, errand, wait_s if is_async else math.inf):
                return self._accepted(request, request_id)
        except BaseException:
            errand.cancel()
            self._forget(tenant, request_id)
            raise
        self._forget(tenant, request_id)
        answer = errand.answer
        assert answer is not None
        return self._front.answer(request, answer.body, answer.status, answer.headers)

    async def read(self, request: Request) -> Response:
        """`GET /v1/requests/{id}`."""
        tenant, request_id = self._front.principal(request).tenant, request.path_params["id"]
        found = self._later.find(tenant, request_id, _monotonic())
        if isinstance(found, KeptAnswer):
            return self._front.answer(request, found.body, found.status, {**found.headers, STATE: "finished"})
        if found is RUNNING:
            return self._front.json(request, _running(request_id), 202, {STATE: "running", "retry-after": "1"})
        return self._gone(request)

    async def cancel(self, request: Request) -> Response:
        """`DELETE /v1/requests/{id}`: what runs is cancelled, an answer that is kept is forgotten."""
        tenant, request_id = self._front.principal(request).tenant, request.path_params["id"]
        if self._later.find(tenant, request_id, _monotonic()) is GONE:
            return self._gone(request)
        errand = self._running.get(request_id)
        self._forget(tenant, request_id)
        if errand is not None:
            errand.cancel()
        return self._front.answer(request, b"", 204, {})

    def _errand(self, request: Request, on_done: OnDone) -> Errand:
        found: h.Found = {}
        h.read_headers(request.headers.raw, found)
        found.pop(h.ACCEPT_ENCODING, None)  # who fetches the answer may read less than who asked for it
        names = request.path_params
        return Errand(self._doorway, ModelPath(names["model"], names.get("version", ""), "infer"), found, on_done)

    async def _ended(self, request: Request, errand: Errand, within_s: float) -> bool:
        """Wait for the answer as long as the caller would. Raises Cancelled where it leaves."""
        # What is wrong with a request shows at once, and then a second look would only be a detour.
        if errand.answer is not None and errand.answer.status >= 400:
            return True
        if within_s <= 0:
            return False
        left = asyncio.ensure_future(request.receive())  # the body is read: the next event is that the caller leaves
        done = asyncio.ensure_future(errand.done.wait())
        try:
            longest_s = self._doorway.max_timeout_ms / 1000 + _GUARD_S
            timeout_s = min(within_s, longest_s)
            await asyncio.wait({left, done}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done.done() and (left.done() or within_s > longest_s):
                raise Cancelled("the caller left, or its request outlived every deadline")
            return done.done()
        finally:
            left.cancel()
            done.cancel()

    def _finished(self, tenant: str, request_id: str, answer: KeptAnswer) -> None:
        self._running.pop(request_id, None)
        if len(answer.body) > self._later.max_bytes:
            error = TooLarge(f"the answer has {len(answer.body)} bytes, at most {self._later.max_bytes} are kept")
            answer = _as_answer(error, answer.headers.get("x-request-id", ""))
        self._later.finish(tenant, request_id, answer, _monotonic())
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._keep_s, self._sweep)

    def _sweep(self) -> None:
        self._later.sweep(_monotonic())
        loop = asyncio.get_running_loop()
        # Ten times a life: what is kept outstays its time by a tenth at most.
        self._sweeper = loop.call_later(self._keep_s / 10, self._sweep) if self._later.num_bytes else None

    def _forget(self, tenant: str, request_id: str) -> None:
        self._later.remove(tenant, request_id, _monotonic())
        self._running.pop(request_id, None)

    def _accepted(self, request: Request, request_id: str) -> Response:
        where = {"location": f"/v1/requests/{request_id}", "preference-applied": "respond-async"}
        return self._front.json(request, _running(request_id), 202, {STATE: "running", "retry-after": "1", **where})

    def _gone(self, request: Request) -> Response:
        return self._front.error(request, NotFound("this request's answer is gone: deleted, or kept long enough"), 410)


def _running(request_id: str) -> dict[str, str]:
    return {"id": request_id, "state": "running"}


def _as_answer(error: HeadraceError, request_id: str) -> KeptAnswer:
    headers = {"content-type": JSON, "x-request-id": request_id, **error_headers(error)}
    return KeptAnswer(error.http_status, headers, error_body(error))
