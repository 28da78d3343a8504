"""One infer request from its headers to its answer: receive, submit, respond. The connection is protocol.py's.

    head → body … → begin → core.submit → done → respond
                         ↘ refused ↗          ↘ caller left: nothing is written

It stands in `HttpToolsProtocol.cycle` where uvicorn has its ASGI cycle, and has the attributes that one is asked for.

Invariants: exactly one response is written, or none where the caller left first (tests/integration/http_door).
"""

from __future__ import annotations

import time
from typing import Final, Protocol

import structlog

from contract.deadline import parse_timeout_ms
from contract.errors import HeadraceError, InternalError
from contract.principal import Principal
from gateway.core import Answer, Outcome, Pending
from gateway.failures import log_failure
from gateway.http import headers as h
from gateway.http.counters import OK
from gateway.http.doorway import Doorway
from gateway.http.encoded import expand, shrink
from gateway.http.errors import error_body, error_head
from gateway.http.paths import ModelPath
from gateway.oip.binary import header_length
from gateway.oip.decode import decode
from gateway.oip.encode import encode
from gateway.oip.request import JSON_FORM, OutputForm

_log = structlog.get_logger("gateway.http")
_monotonic = time.monotonic


class _NoEvent:
    """uvicorn sets its cycle's event when the connection goes; nobody waits for ours."""

    def set(self) -> None:
        """Nothing to wake."""


NO_EVENT: Final = _NoEvent()


class Line(Protocol):
    """The connection, as an exchange sees it."""

    def respond(self, exchange: Exchange, head: bytes, parts: list[bytes | memoryview], num_bytes: int) -> None:
        """Write the response; `head` ends before content-length."""


class Exchange:
    """One infer request on one connection."""

    # Defaults live in the class: a request sets few of them, and setting costs more than the whole of its parsing.
    body: bytes | bytearray = b""
    error: HeadraceError | None = None
    """Found wrong before the body was complete; told when it is, so that the connection stays usable."""
    error_status = 0
    request_id = ""
    is_received = False
    is_turn = False
    wants_continue = False
    response_complete = False
    disconnected = False
    message_event = NO_EVENT
    _began_s = 0.0
    _model = ""
    _principal: Principal | None = None
    _caller_id = ""
    _form: OutputForm = JSON_FORM
    _pending: Pending | None = None

    def __init__(
        self, line: Line, doorway: Doorway, path: ModelPath | None, found: h.Found, *, keep_alive: bool
    ) -> None:
        self._line = line
        self._doorway = doorway
        self._path = path
        self._found = found
        self.keep_alive = keep_alive

    def begin(self) -> None:
        """The request is complete and it is its turn: decode it and hand it to the core, or refuse it."""
        doorway = self._doorway
        self._began_s = _monotonic()
        doorway.counters.began()
        echoed = h.request_id(self._found) if h.REQUEST_ID in self._found else None
        self.request_id = doorway.new_request_id() if echoed is None else echoed.decode()
        try:
            if self.error is not None:
                raise self.error
            self._submit()
        except HeadraceError as e:
            self._done(e)
        except Exception:  # noqa: BLE001 - whatever a request does to us, its caller gets an answer and the door stays up
            _log.exception("request-broke-the-door", request_id=self.request_id)
            self._done(InternalError(f"internal error, request {self.request_id}"))

    def abandon(self) -> None:
        """The caller left."""
        self.disconnected = True
        self.body = b""
        if self._pending is not None:
            self._pending.cancel()

    def resume(self, body: bytes | bytearray | HeadraceError) -> None:
        """The body without its encoding is there, or the reason why it never will be."""
        self._found.pop(h.CONTENT_ENCODING, None)
        try:
            if isinstance(body, HeadraceError):
                raise body
            self.body = body
            self._submit()
        except HeadraceError as e:
            self._done(e)
        except Exception:  # noqa: BLE001 - as in begin
            _log.exception("request-broke-the-door", request_id=self.request_id)
            self._done(InternalError(f"internal error, request {self.request_id}"))

    def finish(self, head: bytes, parts: list[bytes | memoryview], num_bytes: int) -> None:
        """The answer is compressed."""
        self.response_complete = True
        self._doorway.counters.ended(self._model, OK, _monotonic() - self._began_s)
        self._line.respond(self, head, parts, num_bytes)

    def _submit(self) -> None:
        doorway, found, path = self._doorway, self._found, self._path
        assert path is not None
        principal = self._principal = doorway.identify(
            h.text(found, h.AUTHORIZATION) if h.AUTHORIZATION in found else None
        )
        timeout_s = doorway.default_timeout_s
        if h.TIMEOUT in found:
            timeout_s = parse_timeout_ms(h.text(found, h.TIMEOUT), max_ms=doorway.max_timeout_ms) / 1000
        service = h.text(found, h.SERVICE) if h.SERVICE in found else ""
        target = doorway.core.resolve(principal, service, path.model, path.version)
        self._model = path.model
        if h.CONTENT_ENCODING in found:
            expand(doorway, self, self.body, found, self._began_s + timeout_s)
            return
        length = header_length([h.text(found, h.INFERENCE_LENGTH)]) if h.INFERENCE_LENGTH in found else None
        decoded = decode(self.body, length, target.card, max_json_bytes=doorway.max_json_bytes)
        self.body = b""
        self._caller_id, self._form = decoded.caller_id, decoded.form
        traceparent = h.traceparent(found) if h.TRACEPARENT in found else ""
        decoded.ask(principal, self.request_id, self._began_s + timeout_s, traceparent)
        pending = doorway.core.submit(target, decoded, self._done)
        if not self.response_complete:
            self._pending = pending

    def _done(self, outcome: Outcome) -> None:
        """The one end, called by the core or by ourselves."""
        assert not self.response_complete, "a request ends once"
        self._pending = None
        self.body = b""
        if isinstance(outcome, Answer):
            try:
                encoded = encode(outcome, self._caller_id, self._form)
            except HeadraceError as e:
                outcome = e
            except Exception:  # noqa: BLE001 - as in begin
                _log.exception("answer-broke-the-door", request_id=self.request_id)
                outcome = InternalError(f"internal error, request {self.request_id}")
            else:
                head, found = self._answer_head(encoded.header_length), self._found
                if h.ACCEPT_ENCODING in found and shrink(self._doorway, self, found[h.ACCEPT_ENCODING], head, encoded):
                    return
                self.response_complete = True
                self._doorway.counters.ended(self._model, OK, _monotonic() - self._began_s)
                self._line.respond(self, head, encoded.parts, encoded.num_bytes)
                return
        self.response_complete = True
        seconds = _monotonic() - self._began_s
        self._doorway.counters.ended(self._model, outcome.code, seconds)
        self._log(outcome, seconds)
        body = error_body(outcome)
        head = b"%bx-request-id: %b\r\n" % (error_head(outcome, self.error_status), self.request_id.encode())
        self._line.respond(self, head, [body], len(body))

    def _log(self, error: HeadraceError, seconds: float) -> None:
        found = self._found
        log_failure(
            error,
            door="http",
            request_id=self.request_id,
            caller_id=self._caller_id,
            traceparent=h.traceparent(found),
            tenant="" if self._principal is None else self._principal.tenant,
            service=h.text(found, h.SERVICE) if h.SERVICE in found else "",
            model="" if self._path is None else self._path.model,
            status=self.error_status or error.http_status,
            seconds=seconds,
        )

    def _answer_head(self, header_length: int | None) -> bytes:
        request_id = self.request_id.encode()
        if header_length is None:
            return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: %b\r\n" % request_id
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
            b"inference-header-content-length: %d\r\nx-request-id: %b\r\n" % (header_length, request_id)
        )
