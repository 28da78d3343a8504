"""The OpenAI routes on the HTTP door: models, embeddings, rerank, score. Decides nothing about vectors; see its mates.

    body -> asked.py -> resolve -> embedder.py -> fanout.py -> answers.py

Rerank and score compare embeddings by their cosine: that is a bi-encoder's judgement, not a cross-encoder's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import Cancelled, HeadraceError, InternalError, NotFound, TooLarge
from gateway.core import Target
from gateway.failures import log_failure
from gateway.http import headers as h
from gateway.http.counters import OK
from gateway.http.front import JSON, Front
from gateway.http.once import Once
from gateway.http.routing import RawRoute
from gateway.openai.answers import (
    cosines,
    cut_dimensions,
    embeddings_parts,
    model_object,
    rerank_answer,
    score_answer,
)
from gateway.openai.asked import Inputs, embeddings_asked, rerank_asked, score_asked
from gateway.openai.embedder import Embedder, embedder
from gateway.openai.errors import ModelNotFound
from gateway.openai.fanout import Caller, Embedded, Fanout

VERSION: Final = "headrace-model-version"
TRUNCATED: Final = "headrace-truncated-inputs"
CLIENT_TIMEOUTS: Final = ("x-stainless-read-timeout", "x-stainless-timeout")
"""How long OpenAI's Python and Node clients wait, in seconds: there is no sense in giving up sooner."""
BREATH_BYTES: Final = 256 * 1024
"""So much of an answer is encoded at one go; then others get a turn."""

log = structlog.get_logger("gateway.openai")

_monotonic = time.monotonic
Body = bytes | bytearray


def openai_routes(front: Front, once: Once) -> list[BaseRoute]:
    """Every route."""
    routes = OpenAiRoutes(front)
    return [
        RawRoute("/v1/models", routes.models),
        RawRoute("/v1/models/{model}", routes.model),
        RawRoute("/v1/embeddings", once.wrap(routes.embeddings, routes.timeout_s), methods=["POST"]),
        RawRoute("/v1/rerank", routes.rerank, methods=["POST"]),
        RawRoute("/v1/score", routes.score, methods=["POST"]),
    ]


class Call:
    """One request to an embedding route, from its headers on."""

    def __init__(self, front: Front, request: Request) -> None:
        self.began_s = _monotonic()
        self.model = ""
        self.headers: dict[str, str] = {}
        self._front = front
        self._request = request
        found: h.Found = dict(request.headers.raw)
        echoed = h.request_id(found)
        principal = front.principal(request)
        self.caller = Caller(
            principal,
            echoed.decode() if echoed else front.doorway.new_request_id(),
            self.began_s + call_timeout_s(front, request),
            h.traceparent(found),
        )

    @property
    def identity(self) -> dict[str, str]:
        """The header that joins the answer with the logs."""
        return {"x-request-id": self.caller.request_id}

    def resolve(self, model: str) -> Target:
        """The model that the body names. Raises HeadraceError where there is none."""
        version = self._request.headers.get(VERSION, "")
        core, service = self._front.doorway.core, self._front.service(self._request)
        try:
            target = core.resolve(self.caller.principal, service, model, version)
        except NotFound as e:
            raise ModelNotFound(e.message) from None
        self.model = model
        return target

    async def embed(self, model: str, inputs: Inputs, name: Callable[[int], str], dimensions: int | None) -> Embedded:
        """Embed all inputs; whatever ends this task cancels what is open."""
        target = self.resolve(model)
        own: Embedder = embedder(target.card.config)
        own.check(inputs, [name(index) for index in range(len(inputs))])
        own.check_dimensions(dimensions, own.output.dims[0])
        found = await Fanout(self._front.doorway.core, target, own, self.caller, inputs, name).run()
        own.check_dimensions(dimensions, found.vectors.shape[1])
        if found.num_truncated:
            self.headers[TRUNCATED] = str(found.num_truncated)
        found.vectors = cut_dimensions(found.vectors, dimensions)
        return found

    def answer(self, body: bytes) -> Response:
        """200 with this body."""
        took_ms = round((_monotonic() - self.began_s) * 1000)
        headers = {"content-type": JSON, "openai-processing-ms": str(took_ms), **self.identity, **self.headers}
        return self._front.answer(self._request, body, 200, headers)


def call_timeout_s(front: Front, request: Request) -> float:
    """How long the caller waits, as it says or as its client does."""
    headers, doorway = request.headers, front.doorway
    if h.TIMEOUT.decode() in headers:
        return front.timeout_s(request)
    for name in CLIENT_TIMEOUTS:
        text = headers.get(name, "").partition(".")[0]
        if text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text):
            return min(float(text), doorway.max_timeout_ms / 1000)
    return doorway.default_timeout_s


Work = Callable[[Call, Body], Awaitable[Response]]


class OpenAiRoutes:
    """The endpoints."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._doorway = front.doorway
        self._started_unix_s = int(time.time())

    def timeout_s(self, request: Request) -> float:
        """See `call_timeout_s`."""
        return call_timeout_s(self._front, request)

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`: every model of the caller's service that is ready."""
        principal, service = self._front.principal(request), self._front.service(request)
        core = self._doorway.core
        names = {card.config.name for _, card in core.models(service or principal.default_service)}

        def is_ready(name: str) -> bool:
            try:
                core.resolve(principal, service, name, "")
            except HeadraceError:
                return False
            return True

        data = [model_object(name, self._started_unix_s) for name in sorted(names) if is_ready(name)]
        return self._front.json(request, {"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`."""
        try:
            target = self._front.resolve(request)
        except NotFound as e:
            raise ModelNotFound(e.message) from None
        return self._front.json(request, model_object(target.card.config.name, self._started_unix_s))

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""

        async def work(call: Call, body: Body) -> Response:
            asked = embeddings_asked(body)
            found = await call.embed(asked.model, asked.inputs, asked.name, asked.dimensions)
            parts = embeddings_parts(asked.model, found.vectors, asked.encoding, found.num_tokens)
            return call.answer(await joined(parts))

        return await self._counted(request, work)

    async def rerank(self, request: Request) -> Response:
        """`POST /v1/rerank`."""

        async def work(call: Call, body: Body) -> Response:
            asked = rerank_asked(body)
            found = await call.embed(asked.model, asked.texts, asked.name, None)
            scores = cosines(found.vectors[:1], found.vectors[1:])
            answer = rerank_answer(asked, scores, call.caller.request_id, found.num_tokens)
            return call.answer(orjson.dumps(answer))

        return await self._counted(request, work)

    async def score(self, request: Request) -> Response:
        """`POST /v1/score`."""

        async def work(call: Call, body: Body) -> Response:
            asked = score_asked(body)
            found = await call.embed(asked.model, asked.texts, asked.name, None)
            first, second = found.vectors[: len(asked.first)], found.vectors[len(asked.first) :]
            now_s = int(time.time())
            answer = score_answer(asked.model, cosines(first, second), call.caller.request_id, now_s, found.num_tokens)
            return call.answer(orjson.dumps(answer))

        return await self._counted(request, work)

    # ------------------------------------------------------------------ one call

    async def _counted(self, request: Request, work: Work) -> Response:
        """Read, work, answer; counted and, where it fails, logged like every request."""
        counters, began_s = self._doorway.counters, _monotonic()
        counters.began()
        call: Call | None = None
        code = InternalError.code
        try:
            call = Call(self._front, request)
            body = await self._body(request)
            response = await self._until_left(request, work(call, body))
            code = OK
        except HeadraceError as e:
            code = e.code
            self._log(request, call, e, _monotonic() - began_s)
            response = self._front.error(request, e, headers=None if call is None else call.identity)
        finally:
            counters.ended("" if call is None else call.model, code, _monotonic() - began_s)
        return response

    async def _body(self, request: Request) -> Body:
        body = await self._front.plain_body(request)
        limit = self._doorway.max_json_bytes
        if len(body) > limit:
            raise TooLarge(f"the request's JSON has {len(body)} bytes, at most {limit} are taken")
        return body

    @staticmethod
    async def _until_left(request: Request, work: Awaitable[Response]) -> Response:
        """The work's response; a caller that leaves ends it."""
        working = asyncio.ensure_future(work)
        left = asyncio.ensure_future(request.receive())  # the body is read: the next event is that the caller leaves
        try:
            await asyncio.wait({working, left}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Cancelled("the caller left")
            return working.result()
        finally:
            left.cancel()
            working.cancel()

    def _log(self, request: Request, call: Call | None, error: HeadraceError, seconds: float) -> None:
        log_failure(
            error,
            door="openai",
            request_id="" if call is None else call.caller.request_id,
            caller_id="",
            traceparent="" if call is None else call.caller.traceparent,
            tenant="" if call is None else call.caller.principal.tenant,
            service=request.headers.get(h.SERVICE.decode(), ""),
            model="" if call is None else call.model,
            status=error.http_status,
            seconds=seconds,
        )


async def joined(parts: Iterator[bytes]) -> bytes:
    """All parts as one, with pauses in which others get a turn."""
    found = bytearray()
    pause_at = BREATH_BYTES
    for part in parts:
        found += part
        if len(found) > pause_at:
            pause_at = len(found) + BREATH_BYTES
            await asyncio.sleep(0)
    return bytes(found)
