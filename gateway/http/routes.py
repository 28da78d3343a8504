"""Every route but infer, as a Starlette app: health, readiness, metadata, configs, and errors in our form.

*Ready* means: the broker is connected, this gateway is not draining, and every configured group can be asked. Whether a
model is ready says its own route; a group without workers does not make the gateway unready, or its first model could
never be loaded.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from contract.errors import HeadraceError, InternalError, InvalidInput, NotFound, Unavailable
from gateway.core import Target
from gateway.http import headers as h
from gateway.http.doorway import Doorway
from gateway.http.errors import error_body, error_headers
from gateway.http.metadata import model_metadata, server_metadata
from gateway.http.paths import ModelPath, parse_model_path

_JSON = "application/json"


def build_app(doorway: Doorway) -> Starlette:
    """The app behind the door."""
    routes = Routes(doorway)
    app = Starlette(
        routes=[
            Route("/v2", routes.server),
            Route("/v2/health/live", routes.live),
            Route("/v2/health/ready", routes.ready),
            Route("/v2/models/{rest:path}", ModelRoutes(routes)),
        ],
        exception_handlers={
            HeadraceError: routes.refused,
            HTTPException: routes.http_error,
            Exception: routes.broken,
        },
    )
    app.router.redirect_slashes = False  # a path with a slash too many is no path of ours
    return app


class Routes:
    """The endpoints."""

    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway

    async def server(self, request: Request) -> Response:
        """`GET /v2`."""
        return self._json(request, server_metadata())

    async def live(self, request: Request) -> Response:
        """`GET /v2/health/live`: this process answers."""
        return self._json(request, {"live": True})

    async def ready(self, request: Request) -> Response:
        """`GET /v2/health/ready`: see the module."""
        if self._doorway.is_draining:
            return self._error(request, Unavailable("this gateway is shutting down"))
        if not self._doorway.core.is_ready:
            return self._error(request, Unavailable("this gateway is not ready: the message broker can't be used yet"))
        return self._json(request, {"ready": True})

    def model(self, request: Request, path: ModelPath) -> Response:
        """The model routes that only read: they answer as the infer route would, so unready is 503."""
        target = self.resolve(request, path)
        if path.action == "ready":
            return self._json(request, {"name": path.model, "ready": True})
        if path.action == "config":
            return self._json(request, target.card.triton_config)
        return self._json(request, model_metadata(target.card))

    async def refused(self, request: Request, error: Exception) -> Response:
        """An error of ours."""
        assert isinstance(error, HeadraceError)
        return self._error(request, error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Starlette's own: no such path, or not with this method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = dict(error.headers or {}).get("Allow", "")
            return self._error(request, method_refused(request.method, allowed), status=405, allow=allowed)
        if error.status_code == 404:
            return self._error(request, NotFound(f"there is no path {request.url.path[:256]!r}"))
        return self._error(request, InvalidInput(str(error.detail)), status=error.status_code)

    async def broken(self, request: Request, error: Exception) -> Response:
        """A fault of ours; uvicorn logs the traceback."""
        return self._error(request, InternalError(f"internal error: {type(error).__name__}"))

    def wrong_method(self, request: Request, allowed: str) -> Response:
        """405 with `Allow`."""
        return self._error(request, method_refused(request.method, allowed), status=405, allow=allowed)

    def resolve(self, request: Request, path: ModelPath) -> Target:
        """The model that the path names, for who asks. Raises HeadraceError where there is none."""
        found: h.Found = {}
        h.read_headers(request.headers.raw, found)
        principal = self._doorway.identify(h.text(found, h.AUTHORIZATION) if h.AUTHORIZATION in found else None)
        service = h.text(found, h.SERVICE) if h.SERVICE in found else ""
        return self._doorway.core.resolve(principal, service, path.model, path.version)

    def _json(self, request: Request, content: Any) -> Response:
        return self._response(request, orjson.dumps(content), 200, {})

    def _error(self, request: Request, error: HeadraceError, status: int = 0, allow: str = "") -> Response:
        headers = error_headers(error)
        if allow:
            headers["allow"] = allow
        return self._response(request, error_body(error), status or error.http_status, headers)

    def _response(self, request: Request, body: bytes, status: int, headers: dict[str, str]) -> Response:
        echoed = h.request_id(dict(request.headers.raw))
        headers["x-request-id"] = echoed.decode() if echoed else self._doorway.new_request_id()
        return Response(body, status, headers, _JSON)


class ModelRoutes:
    """`/v2/models/…` by the raw path: Starlette's own parameters would take an encoded slash for a separator."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Starlette calls it for every method."""
        request = Request(scope)
        path = parse_model_path(scope["raw_path"])
        if path is None:
            raise NotFound(f"there is no path {request.url.path[:256]!r}")
        allowed = "POST" if path.action == "infer" else "GET, HEAD"
        if request.method not in allowed.split(", "):
            if not path.action:
                self._routes.resolve(request, path)  # `POST …/m%2Finfer` is no wrong method, but a model m/infer
            response = self._routes.wrong_method(request, allowed)
        else:
            response = self._routes.model(request, path)
        await response(scope, receive, send)


def method_refused(method: str, allowed: str) -> InvalidInput:
    """The words of a 405."""
    return InvalidInput(f"method {method[:32]!r} is not allowed here, allowed: {allowed}")
