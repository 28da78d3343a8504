"""The HTTP routes as a Starlette app: health, readiness, metadata, configs, all others by name; errors in our form.

*Ready* means: the broker is connected, this gateway is not draining, and every configured group can be asked. Whether a
model is ready says its own route; a group without workers does not make the gateway unready, or its first model could
never be loaded.

A new endpoint is one line in `build_app` and one entry in `operations.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import HeadraceError, InternalError, InvalidInput, NotFound, Unavailable
from gateway.http.doorway import Doorway
from gateway.http.extensions import absent_routes
from gateway.http.front import Front
from gateway.http.metadata import model_metadata, own_version, server_metadata
from gateway.http.once import Once
from gateway.http.openapi import OpenApi
from gateway.http.page import HEADERS, index_page
from gateway.http.repository import repository_routes
from gateway.http.requests import LaterRequests
from gateway.http.routing import RawRoute, allowed_methods
from gateway.http.statistics import statistics_routes
from gateway.http.usage import usage_routes
from gateway.idempotency.keys import Keys
from gateway.openai.routes import openai_routes
from gateway.settings import GatewaySettings
from gateway.usage.book import UsageBook

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(
    doorway: Doorway, settings: GatewaySettings, keys: Keys | None = None, book: UsageBook | None = None
) -> Starlette:
    """The app behind the door."""
    front = Front(doorway)
    routes, refusals = Routes(front), Refusals(front)
    later = LaterRequests(front, settings)
    once = Once(front, keys)
    app = Starlette(
        routes=[
            RawRoute("/", routes.index),
            *OpenApi(front).routes(),
            RawRoute("/v2", routes.server),
            RawRoute("/v2/", routes.server),  # as the Open Inference Protocol's own description spells it
            RawRoute("/v2/health/live", routes.live),
            RawRoute("/v2/health/ready", routes.ready),
            *statistics_routes(front),
            *model_routes("", routes.model),
            *model_routes("/ready", routes.model_ready),
            *model_routes("/config", routes.model_config),
            # With a preference or an idempotency key; protocol.py answers all others.
            *model_routes("/infer", once.wrap(later.infer, front.timeout_s), "POST"),
            *repository_routes(front),
            RawRoute("/v1/requests/{id}", later.read),
            RawRoute("/v1/requests/{id}", later.cancel, methods=["DELETE"]),
            *openai_routes(front, once),
            *usage_routes(front, book),
            *absent_routes(),
        ],
        exception_handlers={
            HeadraceError: refusals.refused,
            HTTPException: refusals.http_error,
            Exception: refusals.broken,
        },
    )
    app.router.redirect_slashes = False  # a path with a slash too many is no path of ours
    return app


def model_routes(action: str, endpoint: Endpoint, *methods: str) -> list[BaseRoute]:
    """A model's route and the same for each of its versions."""
    base = "/v2/models/{model}"
    return [
        RawRoute(f"{start}{action}", endpoint, methods=methods or ("GET",))
        for start in (base, base + "/versions/{version}")
    ]


class Routes:
    """The endpoints that only read: a model's answer as the infer route would, so unready is 503."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._doorway = front.doorway

    async def index(self, request: Request) -> Response:
        """`GET /`."""
        return self._front.answer(request, index_page(own_version(), str(request.base_url).rstrip("/")), 200, HEADERS)

    async def server(self, request: Request) -> Response:
        """`GET /v2`."""
        return self._front.json(request, server_metadata())

    async def live(self, request: Request) -> Response:
        """`GET /v2/health/live`: this process answers."""
        return self._front.json(request, {"live": True})

    async def ready(self, request: Request) -> Response:
        """`GET /v2/health/ready`: see the module."""
        if self._doorway.is_draining:
            raise Unavailable("this gateway is shutting down")
        if not self._doorway.core.is_ready:
            raise Unavailable("this gateway is not ready: the message broker can't be used yet")
        return self._front.json(request, {"ready": True})

    async def model(self, request: Request) -> Response:
        """Metadata of a model."""
        return self._front.json(request, model_metadata(self._front.resolve(request).card))

    async def model_ready(self, request: Request) -> Response:
        """Whether it can be asked."""
        self._front.resolve(request)
        return self._front.json(request, {"name": request.path_params["model"], "ready": True})

    async def model_config(self, request: Request) -> Response:
        """Its config in Triton's form."""
        return self._front.json(request, self._front.resolve(request).card.triton_config)


class Refusals:
    """Errors as answers."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def refused(self, request: Request, error: Exception) -> Response:
        """An error of ours."""
        assert isinstance(error, HeadraceError)
        return self._front.error(request, error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Starlette's own: no such path, or not with this method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return self._wrong_method(request)
        if error.status_code == 404:
            return self._front.error(request, NotFound(f"there is no path {request.url.path[:256]!r}"))
        return self._front.error(request, InvalidInput(str(error.detail)), error.status_code)

    async def broken(self, request: Request, error: Exception) -> Response:
        """A fault of ours; uvicorn logs the traceback."""
        return self._front.error(request, InternalError(f"internal error: {type(error).__name__}"))

    def _wrong_method(self, request: Request) -> Response:
        allowed = ", ".join(allowed_methods(request.app.routes, request.scope))
        if request.method == "OPTIONS":
            return self._front.answer(request, b"", 204, {"allow": allowed})
        if "/" in request.path_params.get("model", ""):  # `POST …/m%2Finfer` is no wrong method, but a model m/infer
            try:
                self._front.resolve(request)
            except HeadraceError as e:
                return self._front.error(request, e)
        words = f"method {request.method[:32]!r} is not allowed here, allowed: {allowed}"
        return self._front.error(request, InvalidInput(words), 405, {"allow": allowed})
