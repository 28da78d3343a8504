"""`POST /v2/repository/…`: index, load, unload, in Triton's form. Loads nothing; gateway/repository.py does.

Loading and unloading need the role `admin`. Without a tenants file everybody has it, and the door is on loopback only.

Source: Triton, docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import base64
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import Forbidden, InvalidInput
from gateway.core import IndexEntry, ModelRepository
from gateway.http.front import Front
from gateway.http.routing import RawRoute

T = TypeVar("T", bool, str, dict[str, Any])
_FILE: Final = "file:"


def repository_routes(front: Front) -> list[BaseRoute]:
    """The three routes."""
    routes = RepositoryRoutes(front)
    return [
        RawRoute("/v2/repository/index", routes.index, methods=["POST"]),
        RawRoute("/v2/repository/models/{model}/load", routes.load, methods=["POST"]),
        RawRoute("/v2/repository/models/{model}/unload", routes.unload, methods=["POST"]),
    ]


class RepositoryRoutes:
    """The endpoints."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @property
    def _repository(self) -> ModelRepository:
        return self._front.doorway.core.repository

    async def index(self, request: Request) -> Response:
        """Every model and version with its state; `ready` asks for those that serve."""
        principal = self._front.principal(request)
        service = self._front.service_of(request, principal)
        asked = await self._front.json_object(request)
        ready = _typed(asked, "ready", bool, False)
        found = self._repository.index(service=service, ready=ready)
        return self._front.json(request, [_entry(e) for e in found if principal.may_use(e.name)])

    async def load(self, request: Request) -> Response:
        """Load a model, or load it anew; answers when it serves."""
        service = self._service_for_change(request)
        # Files come as base64 inside the JSON; an administrator may hold up the loop for a moment.
        asked = await self._front.json_object(request, self._front.doorway.max_request_bytes)
        config, files = read_overrides(_typed(asked, "parameters", dict, {}))
        await self._repository.load(request.path_params["model"], service=service, config=config, files=files)
        return self._front.json(request, {})

    async def unload(self, request: Request) -> Response:
        """Unload a model; answers when it is done."""
        service = self._service_for_change(request)
        parameters = _typed(await self._front.json_object(request), "parameters", dict, {})
        _only(parameters, {"unload_dependents"})
        dependents = _typed(parameters, "unload_dependents", bool, False)
        await self._repository.unload(request.path_params["model"], service=service, unload_dependents=dependents)
        return self._front.json(request, {})

    def _service_for_change(self, request: Request) -> str:
        """The service, of a caller who may change the model that the path names."""
        principal, model = self._front.principal(request, "admin"), request.path_params["model"]
        if not principal.may_use(model):
            raise Forbidden(f"key {principal.key_id!r} may not use model {model!r}")
        return self._front.service_of(request, principal)


def read_overrides(parameters: dict[str, Any]) -> tuple[str | None, dict[str, bytes] | None]:
    """A load's `config`, and its `file:` parameters by path. Raises InvalidInput."""
    _only(parameters, {"config", *(name for name in parameters if name.startswith(_FILE))})
    files = {}
    for name in parameters:
        if not name.startswith(_FILE):
            continue
        try:
            files[name.removeprefix(_FILE)] = base64.b64decode(_typed(parameters, name, str, ""), validate=True)
        except ValueError as e:
            raise InvalidInput(f"parameter {name[:256]!r} is not base64: {e}") from None
    return _typed(parameters, "config", str, "") or None, files or None


def _entry(entry: IndexEntry) -> dict[str, str]:
    """As Triton has it: a model that was never loaded has a name only."""
    fields = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {name: value for name, value in fields.items() if value}


def _typed(fields: dict[str, Any], name: str, wanted: type[T], default: T) -> T:
    found = fields.get(name, default)
    if not isinstance(found, wanted):
        words = {bool: "true or false", str: "a string", dict: "an object"}[wanted]
        raise InvalidInput(f"{name[:256]!r} must be {words}, not {str(found)[:64]!r}")
    return found


def _only(parameters: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(set(parameters) - known)
    if unknown:
        raise InvalidInput(f"parameter {unknown[0][:256]!r} is not known here")
