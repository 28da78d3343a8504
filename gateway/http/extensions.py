"""Protocol extensions that do not exist here, answered by name: 501, never a 404 that reads like a typing error.

They are absent from `extensions` in `GET /v2`, which is what a client should ask. Paths are Triton's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, NoReturn

from starlette.requests import Request
from starlette.routing import BaseRoute

from contract.errors import NotSupported
from gateway.http.routing import RawRoute


class Absent(NamedTuple):
    """One path of an extension that is not here."""

    path: str
    methods: tuple[str, ...]
    extension: str
    """As Triton names it in `extensions`."""
    instead: str


_MEMORY: Final = "send tensors in the request body, binary form costs no parsing"
_LOGS: Final = "log levels are settings: `gateway.log_level`, `worker.log_level`"
_TRACES: Final = "send a `traceparent` header: it is in the log lines of gateway and worker"
_GENERATE: Final = "use the infer route"


def _shared_memory(kind: str) -> tuple[Absent, ...]:
    base, extension = f"/v2/{kind}sharedmemory", f"{kind}_shared_memory"
    region = base + "/region/{region}"
    return (
        Absent(base + "/status", ("GET",), extension, _MEMORY),
        Absent(base + "/unregister", ("POST",), extension, _MEMORY),
        Absent(region + "/status", ("GET",), extension, _MEMORY),
        Absent(region + "/register", ("POST",), extension, _MEMORY),
        Absent(region + "/unregister", ("POST",), extension, _MEMORY),
    )


_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
ABSENT: Final = (
    *_shared_memory("system"),
    *_shared_memory("cuda"),
    Absent("/v2/trace/setting", ("GET", "POST"), "trace", _TRACES),
    Absent(_MODEL + "/trace/setting", ("GET", "POST"), "trace", _TRACES),
    Absent("/v2/logging", ("GET", "POST"), "logging", _LOGS),
    Absent(_MODEL + "/generate", ("POST",), "generate", _GENERATE),
    Absent(_VERSION + "/generate", ("POST",), "generate", _GENERATE),
    Absent(_MODEL + "/generate_stream", ("POST",), "generate", _GENERATE),
    Absent(_VERSION + "/generate_stream", ("POST",), "generate", _GENERATE),
)


def absent_routes() -> list[BaseRoute]:
    """A route for each."""
    return [RawRoute(absent.path, _refusing(absent), methods=absent.methods) for absent in ABSENT]


def _refusing(absent: Absent) -> Callable[[Request], Awaitable[NoReturn]]:
    async def refuse(_request: Request) -> NoReturn:
        raise NotSupported(f"the extension {absent.extension!r} is not supported: {absent.instead}")

    return refuse
