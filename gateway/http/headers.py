"""The few request headers the infer route reads, each given once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from contract.errors import InvalidInput
from gateway.http.compression import coding_of
from gateway.oip.binary import HEADER

ACCEPT_ENCODING: Final = b"accept-encoding"
AUTHORIZATION: Final = b"authorization"
CONNECTION: Final = b"connection"
CONTENT_ENCODING: Final = b"content-encoding"
CONTENT_LENGTH: Final = b"content-length"
EXPECT: Final = b"expect"
IDEMPOTENCY_KEY: Final = b"idempotency-key"
INFERENCE_LENGTH: Final = HEADER.lower().encode()
PREFER: Final = b"prefer"
REQUEST_ID: Final = b"x-request-id"
SERVICE: Final = b"headrace-service"
TIMEOUT: Final = b"headrace-timeout-ms"
TRACEPARENT: Final = b"traceparent"

_READ: Final = frozenset(
    {
        ACCEPT_ENCODING,
        AUTHORIZATION,
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        EXPECT,
        IDEMPOTENCY_KEY,
        INFERENCE_LENGTH,
        PREFER,
        REQUEST_ID,
        SERVICE,
        TIMEOUT,
        TRACEPARENT,
    }
)
_LENIENT: Final = frozenset({ACCEPT_ENCODING, CONNECTION, EXPECT, PREFER, REQUEST_ID, TRACEPARENT})
"""A second copy of these changes nothing that matters; the first one counts."""
_REQUEST_ID = re.compile(rb"[!-~]{1,128}\Z")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")

Found = dict[bytes, bytes]


def read_headers(headers: Iterable[tuple[bytes, bytes]], found: Found) -> None:
    """Put the values of the headers we read into `found`, by lower-case name; all of them, even where this raises.

    Raises:
        InvalidInput: two copies of a header that may be there once, or an encoding that is not supported.
    """
    twice = b""
    for name, value in headers:
        if name in _READ:
            if name not in found:
                found[name] = value
            elif name not in _LENIENT:
                twice = name
    if twice:
        raise InvalidInput(f"header {_spelt(twice)} is given more than once")
    if CONTENT_ENCODING not in found:
        return
    coding = coding_of(found.pop(CONTENT_ENCODING))
    if coding:
        found[CONTENT_ENCODING] = coding.encode()


def text(found: Found, name: bytes) -> str:
    """The value, as text, of a header that came."""
    return found[name].decode("latin-1")


def request_id(found: Found) -> bytes | None:
    """The caller's `x-request-id` if it may be echoed: 1 to 128 printable ASCII characters without spaces."""
    value = found.get(REQUEST_ID)
    return value if value is not None and _REQUEST_ID.match(value) else None


def traceparent(found: Found) -> str:
    """The caller's W3C trace context; empty where there is none that is well-formed."""
    value = found.get(TRACEPARENT)
    return value.decode() if value is not None and _TRACEPARENT.match(value) else ""


def _spelt(name: bytes) -> str:
    return HEADER if name == INFERENCE_LENGTH else name.decode().title()
