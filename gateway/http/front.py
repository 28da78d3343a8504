"""What every endpoint behind Starlette does: who asks, its body, its answer in our form. Knows no route.

Endpoints raise a HeadraceError to refuse; `routes.py` has it answered with `error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from contract.deadline import parse_timeout_ms
from contract.errors import Cancelled, Forbidden, HeadraceError, InvalidInput, TooLarge, Unavailable
from contract.principal import Principal, Role
from gateway.core import Target
from gateway.http import headers as h
from gateway.http.compression import Inflater
from gateway.http.doorway import Doorway
from gateway.http.encoded import expanded
from gateway.http.errors import error_body, error_headers
from gateway.openai.errors import is_openai_path, openai_error, openai_headers

JSON: Final = "application/json"
_SMALL_BYTES: Final = 64 * 1024  # a body up to this size is never refused for what others are sending


class Front:
    """The door's side of one request after another."""

    def __init__(self, doorway: Doorway) -> None:
        self.doorway = doorway

    # ------------------------------------------------------------------ what was asked

    def principal(self, request: Request, role: Role | None = None) -> Principal:
        """Who asks.

        Raises:
            Unauthenticated: no key, or one that nobody knows.  Forbidden: the key lacks `role`.
        """
        found = self._headers(request)
        key = h.text(found, h.AUTHORIZATION) if h.AUTHORIZATION in found else None
        principal = self.doorway.identify(key)
        if role is not None and role not in principal.roles:
            raise Forbidden(f"key {principal.key_id!r} lacks the role {role!r}")
        return principal

    def service(self, request: Request) -> str:
        """The service that the request names, or empty."""
        found = self._headers(request)
        return h.text(found, h.SERVICE) if h.SERVICE in found else ""

    def service_of(self, request: Request, principal: Principal) -> str:
        """The service that the request names, else its caller's; empty is the configured one."""
        return self.service(request) or principal.default_service

    def resolve(self, request: Request) -> Target:
        """The model that the path names, for who asks. Raises HeadraceError where there is none."""
        model, version = request.path_params["model"], request.path_params.get("version", "")
        return self.doorway.core.resolve(self.principal(request), self.service(request), model, version)

    def timeout_s(self, request: Request) -> float:
        """How long the caller waits, at most what the door allows. Raises InvalidInput."""
        found, doorway = self._headers(request), self.doorway
        if h.TIMEOUT not in found:
            return doorway.default_timeout_s
        return parse_timeout_ms(h.text(found, h.TIMEOUT), max_ms=doorway.max_timeout_ms) / 1000

    async def body(self, request: Request) -> bytes:
        """The whole body as it came, bounded alone and together with all others that are being received.

        Raises:
            TooLarge, Unavailable: over a bound.  Cancelled: the caller left.
        """
        doorway, num_bytes, parts = self.doorway, 0, []
        self._check_announced(request)
        try:
            async for part in request.stream():
                num_bytes += len(part)
                doorway.receiving_bytes += len(part)
                if num_bytes > doorway.max_request_bytes:
                    raise _over(num_bytes, doorway.max_request_bytes)
                if doorway.receiving_bytes > doorway.max_receiving_bytes and num_bytes > _SMALL_BYTES:
                    raise Unavailable(f"bodies of over {doorway.max_receiving_bytes} bytes are being received")
                parts.append(part)
        except ClientDisconnect:
            raise Cancelled("the caller left") from None
        finally:
            doorway.receiving_bytes -= num_bytes
        return b"".join(parts)

    async def plain_body(self, request: Request) -> bytes | bytearray:
        """The whole body without its `Content-Encoding`. Raises as `body`, and InvalidInput for a bad encoding."""
        found, body = self._headers(request), await self.body(request)
        if h.CONTENT_ENCODING not in found:
            return body
        inflater = Inflater(h.text(found, h.CONTENT_ENCODING), body, self.doorway.max_request_bytes)
        return await expanded(self.doorway, inflater, len(body))

    async def json_object(self, request: Request, max_bytes: int = 0) -> dict[str, Any]:
        """A body that is a JSON object, or empty, of the door's JSON limit unless told. InvalidInput, and as `body`."""
        body = await self.plain_body(request)
        if not body.strip():
            return {}
        max_bytes = max_bytes or self.doorway.max_json_bytes
        if len(body) > max_bytes:
            raise _over(len(body), max_bytes)
        try:
            found = orjson.loads(body)
        except ValueError as e:
            raise InvalidInput(f"the body is not JSON: {e}") from None
        if not isinstance(found, dict):
            raise InvalidInput("the body must be a JSON object")
        return found

    # ------------------------------------------------------------------ what is answered

    def json(
        self, request: Request, content: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """A JSON answer."""
        return self.answer(request, orjson.dumps(content), status, {"content-type": JSON, **(headers or {})})

    def error(
        self, request: Request, error: HeadraceError, status: int = 0, headers: Mapping[str, str] | None = None
    ) -> Response:
        """A refusal; `status` 0 is the error's own. On OpenAI's routes it has OpenAI's form."""
        body, more = error_body(error), dict(headers or {})
        if is_openai_path(request.url.path):
            body, more = openai_error(error, status), {**openai_headers(error), **more}
        return self.answer(
            request, body, status or error.http_status, {"content-type": JSON, **error_headers(error), **more}
        )

    def answer(self, request: Request, body: bytes, status: int, headers: Mapping[str, str]) -> Response:
        """Any answer, with the request's id: the caller's own, one that `headers` brings, or a new one."""
        echoed = h.request_id(dict(request.headers.raw))
        request_id = echoed.decode() if echoed else headers.get("x-request-id") or self.doorway.new_request_id()
        return Response(body, status, {**headers, "x-request-id": request_id})

    @staticmethod
    def _headers(request: Request) -> h.Found:
        found: h.Found = {}
        h.read_headers(request.headers.raw, found)
        return found

    def _check_announced(self, request: Request) -> None:
        announced = int(request.headers.get("content-length", "0"))  # the parser took it for a number
        if announced > self.doorway.max_request_bytes:
            raise _over(announced, self.doorway.max_request_bytes)


def _over(num_bytes: int, limit: int) -> TooLarge:
    return TooLarge(f"the body has {num_bytes} bytes or more, at most {limit} are taken")
