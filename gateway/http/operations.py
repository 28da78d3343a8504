"""What each route takes and gives, as OpenAPI operations. Data only; `openapi.py` makes the document.

A route of the app without an entry here, or the other way round, fails tests/unit/test_openapi.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.http.extensions import ABSENT

ALWAYS: Final = (400, 408, 431, 500)
"""Statuses that any route may answer: what came is no request, did not come in time, has an endless head; our fault."""
_KEYED: Final = (401, 404)
_MODEL: Final = (*_KEYED, 503)
_RUN: Final = (*_MODEL, 403, 413, 429, 504)
_ONCE: Final = (*_RUN, 422)

BASE_HEADERS: Final = ("RequestId",)
_SERVICE: Final = (*BASE_HEADERS, "Service")
_CALL: Final = (*_SERVICE, "TimeoutMs", "Traceparent")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    tag: str
    summary: str
    answers: dict[int, str] = field(default_factory=dict)
    """Schema by status; empty for an answer without a body, `html` for the page."""
    takes: str = ""
    """Schema of its body."""
    needs_body: bool = False
    errors: tuple[int, ...] = ()
    headers: tuple[str, ...] = BASE_HEADERS
    is_openai: bool = False
    is_binary: bool = False
    """It takes and gives tensors as bytes behind the JSON too."""

    @property
    def name(self) -> str:
        """`operationId`."""
        steps = [s.strip("{}").replace(".", "_") for s in self.path.strip("/").split("/") if s]
        trailing = ["slash"] if self.path.endswith("/") and steps else []
        return "_".join([self.method.lower(), *(steps or ["root"]), *trailing])


def _get(path: str, tag: str, summary: str, gives: str, *errors: int, **more: object) -> Operation:
    return Operation("GET", path, tag, summary, {200: gives}, errors=errors, **more)  # type: ignore[arg-type]


def _versioned(method: str, action: str, summary: str, gives: dict[int, str], **more: object) -> tuple[Operation, ...]:
    base = "/v2/models/{model}"
    return (
        Operation(method, base + action, "models", summary, gives, **more),  # type: ignore[arg-type]
        Operation(method, base + "/versions/{version}" + action, "models", summary, gives, **more),  # type: ignore[arg-type]
    )


def _post(path: str, tag: str, summary: str, takes: str, gives: str, *errors: int, **more: object) -> Operation:
    return Operation("POST", path, tag, summary, {200: gives}, takes, errors=errors, **more)  # type: ignore[arg-type]


_READS: Final = {"errors": _MODEL, "headers": _SERVICE}
_INFER: Final = {
    "takes": "InferRequest",
    "needs_body": True,
    "errors": _ONCE,
    "headers": (*_CALL, "IdempotencyKey", "Prefer", "InferenceHeaderLength"),
    "is_binary": True,
}
_ADMIN: Final = (*_MODEL, 403, 413, 501, 504)
_OPENAI: Final = {"needs_body": True, "headers": (*_CALL, "ModelVersion"), "is_openai": True}
_EMBED: Final = {**_OPENAI, "headers": (*_CALL, "ModelVersion", "IdempotencyKey")}

OPERATIONS: Final[tuple[Operation, ...]] = (
    _get("/", "server", "A page that says what this is", "html"),
    _get("/openapi.json", "server", "This document", "Document"),
    _get("/v2", "server", "Name, version and extensions", "ServerMetadata"),
    _get("/v2/", "server", "Name, version and extensions", "ServerMetadata"),
    _get("/v2/health/live", "server", "The process answers", "Live"),
    _get("/v2/health/ready", "server", "It can take requests", "Ready", 503),
    _get("/v2/models/stats", "models", "Statistics of every model", "ModelStatistics", *_MODEL, headers=_SERVICE),
    *_versioned("GET", "", "Metadata of a model", {200: "ModelMetadata"}, **_READS),
    *_versioned("GET", "/ready", "The model can be asked", {200: "ModelReady"}, **_READS),
    *_versioned("GET", "/config", "Its config in Triton's form", {200: "ModelConfig"}, **_READS),
    *_versioned("GET", "/stats", "What it has done", {200: "ModelStatistics"}, **_READS),
    *_versioned("POST", "/infer", "Ask a model", {200: "InferResponse", 202: "LaterRequest"}, **_INFER),
    Operation(
        "GET",
        "/v1/requests/{id}",
        "requests",
        "The answer of a request sent with `Prefer: respond-async`, with its own status; 202 while it runs",
        {200: "InferResponse", 202: "LaterRequest"},
        errors=(*_RUN, 410),
        is_binary=True,
    ),
    Operation(
        "DELETE", "/v1/requests/{id}", "requests", "Cancel it, or forget its answer", {204: ""}, errors=(*_KEYED, 410)
    ),
    _post(
        "/v2/repository/index",
        "repository",
        "Every model and version",
        "IndexRequest",
        "Index",
        *_MODEL,
        413,
        headers=_SERVICE,
    ),
    _post(
        "/v2/repository/models/{model}/load",
        "repository",
        "Load a model",
        "LoadRequest",
        "Done",
        *_ADMIN,
        headers=_SERVICE,
    ),
    _post(
        "/v2/repository/models/{model}/unload",
        "repository",
        "Unload a model",
        "UnloadRequest",
        "Done",
        *_ADMIN,
        headers=_SERVICE,
    ),
    _get("/v1/usage", "usage", "What was used, by day, tenant, key and model", "Usage", *_MODEL, 403, is_openai=True),
    _get(
        "/v1/models", "openai", "The models that are ready", "OpenAIModels", *_MODEL, headers=_SERVICE, is_openai=True
    ),
    _get("/v1/models/{model}", "openai", "One model", "OpenAIModel", *_MODEL, headers=_SERVICE, is_openai=True),
    _post("/v1/embeddings", "openai", "Embed texts", "EmbeddingsRequest", "Embeddings", *_ONCE, **_EMBED),
    _post("/v1/rerank", "openai", "Sort documents by a query", "RerankRequest", "Rerank", *_RUN, **_OPENAI),
    _post("/v1/score", "openai", "Score pairs of texts", "ScoreRequest", "Score", *_RUN, **_OPENAI),
    *(
        Operation(method, absent.path, "absent", f"Not supported: {absent.extension}", errors=(501,))
        for absent in ABSENT
        for method in absent.methods
    ),
)
