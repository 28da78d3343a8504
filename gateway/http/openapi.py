"""`GET /openapi.json`: every route, error and example as OpenAPI 3.1. Describes; `operations.py` says what.

HEAD goes wherever GET goes, and OPTIONS everywhere; they are not listed one by one.
"""

from __future__ import annotations

import http
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import HeadraceError, InvalidInput, NotFound, TooLarge, all_errors
from gateway.http.examples import EXAMPLES
from gateway.http.front import JSON, Front
from gateway.http.metadata import own_version
from gateway.http.operations import ALWAYS, OPERATIONS, Operation
from gateway.http.routing import RawRoute
from gateway.http.schemas import SCHEMAS, ref
from gateway.openai.errors import openai_error

Part = dict[str, Any]
BINARY: Final = "application/octet-stream"
_TAGS: Final = {
    "server": "What answers here, and whether it can.",
    "models": "The Open Inference Protocol with Triton's extensions.",
    "requests": "Answers that are fetched later.",
    "repository": "Load and unload models: for keys with the role `admin`.",
    "usage": "Who used what.",
    "openai": "As OpenAI's clients ask.",
    "absent": "Extensions that are not here; each is answered with 501 by name.",
}
_DESCRIPTION: Final = """\
Every answer carries `x-request-id`; every error also `headrace-error` with its code, and 429 and 503 `Retry-After`.
`HEAD` goes wherever `GET` goes and `OPTIONS` everywhere; another method is 405 with `Allow`. An unknown path is 404.
Bodies may be sent as `gzip` or `deflate` (`Content-Encoding`), and infer answers so (`Accept-Encoding`).
Keys are asked for only where the gateway has a tenants file."""
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 128, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
_PATH_WORDS: Final = {
    "model": "A slash in its name is sent as %2F.",
    "version": "A version's number.",
    "id": "As `Location` gave it.",
    "region": "Name of a region.",
}
_HEADERS: Final[dict[str, tuple[str, Part, str]]] = {
    "RequestId": ("X-Request-ID", {"type": "string"}, "Echoed, if it is 1 to 128 printable ASCII characters."),
    "Service": ("Headrace-Service", {"type": "string"}, "The service; absent, the key's or the configured one."),
    "TimeoutMs": (
        "Headrace-Timeout-Ms",
        {"type": "integer", "minimum": 1, "maximum": 600_000},
        "Deadline; over it the answer is 504.",
    ),
    "Traceparent": ("traceparent", {"type": "string"}, "W3C trace context, for logs."),
    "IdempotencyKey": (
        "Idempotency-Key",
        {"type": "string", "minLength": 1, "maxLength": 255},
        "A retry with the same key and body gets the first one's answer and runs nothing.",
    ),
    "Prefer": (
        "Prefer",
        {"type": "string", "examples": ["respond-async", "respond-async, wait=5"]},
        "RFC 7240: `respond-async` gives 202 and a `Location` to fetch the answer from; `wait` seconds before that.",
    ),
    "InferenceHeaderLength": (
        "Inference-Header-Content-Length",
        {"type": "integer", "minimum": 0},
        "Bytes of the JSON before the tensors' bytes; 0 where the whole body is the only input.",
    ),
    "ModelVersion": ("Headrace-Model-Version", {"type": "string"}, "A version; absent, the model's own choice."),
}
_ANSWER_HEADERS: Final[dict[str, Part]] = {
    "x-request-id": {"schema": {"type": "string"}, "required": True},
    "headrace-error": {"schema": {"type": "string"}, "required": True, "description": "The error's code."},
    "retry-after": {"schema": {"type": "integer", "minimum": 0}, "required": True, "description": "Seconds."},
    "www-authenticate": {"schema": {"type": "string"}, "required": True},
    "allow": {"schema": {"type": "string"}, "required": True},
    "location": {"schema": {"type": "string"}, "description": "Where the answer will be."},
    "preference-applied": {"schema": {"type": "string"}},
    "inference-header-content-length": {"schema": {"type": "integer", "minimum": 0}, "required": True},
}
_OWN_STATUSES: Final[dict[int, type[HeadraceError]]] = {
    405: InvalidInput,
    408: InvalidInput,
    410: NotFound,
    431: TooLarge,
}
"""Statuses that HTTP has and the error tree has not; the code stays the tree's."""


class OpenApi:
    """The endpoint; the document is made once."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._document = orjson.dumps(build_document(own_version()))

    def routes(self) -> list[BaseRoute]:
        """Its route."""
        return [RawRoute("/openapi.json", self.read)]

    async def read(self, request: Request) -> Response:
        """`GET /openapi.json`."""
        return self._front.answer(request, self._document, 200, {"content-type": JSON})


def build_document(version: str) -> Part:
    """The whole document."""
    paths: dict[str, Part] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    for path, item in paths.items():
        names = [step.strip("{}") for step in path.split("/") if step.startswith("{")]
        if names:
            item["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": version, "description": _DESCRIPTION, "license": _license()},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": words} for name, words in _TAGS.items()],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "parameters": {**_path_parameters(), **_header_parameters()},
            "headers": _ANSWER_HEADERS,
            "responses": {**_errors("Error"), **_errors("OpenAIError")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _license() -> Part:
    return {"name": "Apache 2.0", "identifier": "Apache-2.0"}


def _operation(operation: Operation) -> Part:
    kind = "OpenAIError" if operation.is_openai else "Error"
    responses = {str(status): _answer(operation, status, name) for status, name in operation.answers.items()}
    for status in sorted({*ALWAYS, *operation.errors}):
        responses[str(status)] = {"$ref": f"#/components/responses/{kind}{status}"}
    found: Part = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in operation.headers],
        "responses": responses,
    }
    if operation.takes:
        content = {JSON: _media(operation.takes)}
        if operation.is_binary:
            content[BINARY] = {}
        found["requestBody"] = {"required": operation.needs_body, "content": content}
    return found


def _answer(operation: Operation, status: int, schema: str) -> Part:
    found: Part = {"description": http.HTTPStatus(status).phrase, "headers": _headers("x-request-id")}
    if status == 202:
        found["headers"] = _headers("x-request-id", "retry-after", "location", "preference-applied")
    if schema == "html":
        found["content"] = {"text/html": {"schema": {"type": "string"}}}
    elif schema:
        found["content"] = {JSON: _media(schema)}
        if operation.is_binary and status == 200:
            found["content"][BINARY] = {}
    return found


def _media(schema: str) -> Part:
    return {"schema": ref(schema), "examples": {"example": {"value": EXAMPLES[schema]}}}


def _headers(*names: str) -> Part:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _errors(kind: str) -> Part:
    """A response per status: the codes it can have, each with what it means."""
    by_status: dict[int, list[type[HeadraceError]]] = {}
    for error in all_errors():
        by_status.setdefault(error.http_status, []).append(error)
    for status, error in _OWN_STATUSES.items():
        by_status.setdefault(status, []).append(error)
    return {f"{kind}{status}": _error(kind, status, found) for status, found in sorted(by_status.items())}


def _error(kind: str, status: int, errors: list[type[HeadraceError]]) -> Part:
    extra = {401: ("www-authenticate",), 405: ("allow",), 429: ("retry-after",), 503: ("retry-after",)}
    headers = _headers("x-request-id", *extra.get(status, ()))
    codes = [error.code for error in errors]
    headers["headrace-error"] = {**_ANSWER_HEADERS["headrace-error"], "schema": {"enum": codes}}
    meanings = {error.code: (error.__doc__ or "").strip().partition("\n")[0] for error in errors}
    examples = {
        code: {"summary": words, "value": _example(kind, error, words, status)}
        for error, (code, words) in zip(errors, meanings.items(), strict=True)
    }
    return {
        "description": " ".join(f"`{code}`: {words}" for code, words in meanings.items()),
        "headers": headers,
        "content": {JSON: {"schema": ref(kind), "examples": examples}},
    }


def _example(kind: str, error: type[HeadraceError], words: str, status: int) -> Any:
    return orjson.loads(openai_error(error(words), status)) if kind == "OpenAIError" else {"error": words}


def _path_parameters() -> Part:
    return {
        name: {"name": name, "in": "path", "required": True, "schema": _NAME, "description": words}
        for name, words in _PATH_WORDS.items()
    }


def _header_parameters() -> Part:
    return {
        key: {"name": name, "in": "header", "schema": schema, "description": words}
        for key, (name, schema, words) in _HEADERS.items()
    }
