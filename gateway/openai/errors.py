"""An error of ours in OpenAI's form: `{"error": {message, type, param, code}}`. Pure; writes no response.

Source: OpenAI API reference, "Error codes"; its clients raise by status and read `x-should-retry`.
"""

from __future__ import annotations

from typing import Final

import orjson

from contract.errors import (
    Forbidden,
    HeadraceError,
    InvalidInput,
    NotFound,
    TextTooLong,
    Unauthenticated,
    from_wire,
)

PREFIX: Final = "/v1/"
OWN_PREFIX: Final = "/v1/requests/"
"""Routes below it are ours, with errors in our form."""

_CODES: Final[dict[type[HeadraceError], str]] = {
    Unauthenticated: "invalid_api_key",
    Forbidden: "insufficient_permissions",
    TextTooLong: "context_length_exceeded",
}


class ApiRefused(InvalidInput):
    """Bad input to a route of OpenAI's: names the parameter."""

    def __init__(self, message: str, param: str | None = None, api_code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.api_code = api_code


class ModelNotFound(NotFound):
    """The body, or the path, names a model that is not there."""


def at_input(error: HeadraceError, name: str) -> HeadraceError:
    """The error of one of a call's inputs, which `name` says: `input[3]`, `query`."""
    message = f"{name}: {error.message}"
    if isinstance(error, InvalidInput):
        return ApiRefused(message, name.partition("[")[0], _CODES.get(type(error)))
    return from_wire(error.code, message)


def is_openai_path(path: str) -> bool:
    """Whether errors of this path are told in OpenAI's form."""
    return path.startswith(PREFIX) and not path.startswith(OWN_PREFIX)


def openai_error(error: HeadraceError, status: int = 0) -> bytes:
    """The body."""
    status = status or error.http_status
    param, code = None, _code(error, status)
    if isinstance(error, ApiRefused):
        param, code = error.param, error.api_code
    elif isinstance(error, ModelNotFound):
        param, code = "model", "model_not_found"
    message = error.message.encode("utf-8", "backslashreplace").decode()
    return orjson.dumps({"error": {"message": message, "type": _type(status), "param": param, "code": code}})


def openai_headers(error: HeadraceError) -> dict[str, str]:
    """Headers beside those of every error: clients repeat any 5xx unless told not to."""
    is_final = error.http_status >= 500 and not error.is_retryable
    return {"x-should-retry": "false"} if is_final else {}


def _code(error: HeadraceError, status: int) -> str | None:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, InvalidInput) or status in (404, 405):
        return None
    return "rate_limit_exceeded" if status == 429 else error.code.replace("-", "_")


def _type(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"
