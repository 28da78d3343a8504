"""An error of ours as an HTTP response: `{"error": text}`, `headrace-error: code`, `Retry-After`. Writes nothing.

Status, code and whether a retry makes sense come from `contract.errors`; docs/errors.md explains each code. Where HTTP
itself has a finer status for bad input (405, 408, 431), the code stays the tree's.
"""

from __future__ import annotations

import http

import orjson

from contract.errors import HeadraceError
from gateway.limits.refusal import LimitRefused


def error_body(error: HeadraceError) -> bytes:
    """The JSON body; text that no UTF-8 can carry is escaped."""
    return orjson.dumps({"error": error.message.encode("utf-8", "backslashreplace").decode()})


def error_headers(error: HeadraceError) -> dict[str, str]:
    """Headers beside content-type, content-length and the request id."""
    headers = {"headrace-error": error.code}
    if error.retry_after_s is not None and error.http_status in (429, 503):
        headers["retry-after"] = str(error.retry_after_s)
    if error.http_status == 422:
        headers["x-should-retry"] = "false"
    if isinstance(error, LimitRefused):
        headers |= error.headers()
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def error_head(error: HeadraceError, status: int = 0) -> bytes:
    """Status line and headers, each with its line end, without content-length; `status` 0 is the error's own."""
    status = status or error.http_status
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in error_headers(error).items()]
    return "\r\n".join(lines).encode() + b"\r\n"


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:  # 499 is nginx's word, not the standard's
        return "Client Closed Request"
