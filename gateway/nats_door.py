"""Request-reply for NATS clients on `infer.<tenant>.<service>.<model>`: the same requests, another door.

    request: OIP JSON or the binary form; headers Authorization, Headrace-Timeout-Ms, Headrace-Model-Version,
             Inference-Header-Content-Length, x-request-id, traceparent
    answer:  OIP response, or {"error", "code"}; headers Headrace-Status, headrace-error, retry-after,
             Inference-Header-Content-Length, x-request-id

The tenant is in the subject, because a broker tells a responder nobody's name: with a tenants file the key must be
that tenant's. An answer goes only to a reply subject under the tenant's own inbox prefix. With any other reply
nothing is sent at all: we may publish where the client may not, `$JS.API.STREAM.PURGE.…` for one.

Invariants: exactly one answer per request with a reply subject of the tenant's own; no other subject is ever published
to (tests/integration/test_nats_door.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from secrets import token_hex
from typing import Final

import orjson
import structlog

from contract.deadline import parse_timeout_ms
from contract.errors import HeadraceError, InternalError, InvalidInput, NotFound, NotSupported, TooLarge
from contract.subjects import DOOR_QUEUE, INFER_DOOR, DoorAddress, encode_token, parse_infer, tenant_inbox
from gateway.core import Answer, Core, Outcome
from gateway.failures import log_failure
from gateway.http import headers as h
from gateway.http.errors import error_headers
from gateway.identity import Identity
from gateway.oip.binary import HEADER, header_length
from gateway.oip.decode import decode
from gateway.oip.encode import encode
from gateway.oip.request import JSON_FORM, OutputForm
from gateway.settings import GatewaySettings
from transport.base import PayloadOverLimit, Subscription, TransportError
from transport.headers import HeadedTransport, Pairs

STATUS: Final = "Headrace-Status"
VERSION: Final = b"headrace-model-version"

log = structlog.get_logger("gateway.nats_door")


def is_own_inbox(reply: str, tenant: str, *, is_open: bool) -> bool:
    """Whether `reply` is a subject the tenant may be answered on.

    Without keys everybody is `default` and may use any inbox; with keys a tenant of that name has its own like all.
    """
    prefix = tenant_inbox(tenant) if is_open else f"_INBOX.{encode_token(tenant)}."
    tokens = reply[len(prefix) :].split(".")
    return reply.startswith(prefix) and all(t and t.isprintable() and not set(t) & set("*> ") for t in tokens)


def _text(found: h.Found, name: bytes) -> str | None:
    return h.text(found, name) if name in found else None


class NatsDoor:
    """The door on one gateway's connection."""

    def __init__(
        self,
        core: Core,
        identity: Identity,
        transport: HeadedTransport,
        settings: GatewaySettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._identity = identity
        self._transport = transport
        self._settings = settings
        self._monotonic = monotonic
        self._subscription: Subscription | None = None
        self._num_open = 0
        self._emptied = asyncio.Event()
        self.num_ended: Counter[str] = Counter()
        """Requests by error code, `""` for answers."""
        self.num_unanswerable = 0
        """Requests whose reply subject is missing or not their tenant's: dropped without a word."""

    async def start(self) -> None:
        """Take this gateway's share of the requests."""
        self._subscription = await self._transport.subscribe_with_headers(INFER_DOOR, self._on_request, DOOR_QUEUE)

    async def drain(self, timeout_s: float) -> None:
        """Leave new requests to other gateways, answer those taken."""
        await self.close()
        try:
            async with asyncio.timeout(timeout_s):
                while self._num_open:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            log.warning("drain-cut-short", num_open=self._num_open)

    async def close(self) -> None:
        """Take nothing more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except TransportError as e:
                log.debug("unsubscribe-failed", error=str(e))

    def _on_request(self, subject: str, reply: str, payload: bytes, pairs: Pairs) -> None:
        try:
            address = parse_infer(subject)
        except InvalidInput as e:
            self._drop(subject, reply, e.message)
            return
        if not is_own_inbox(reply, address.tenant, is_open=self._identity.is_open):
            self._drop(subject, reply, "the reply subject is not the tenant's own")
            return
        exchange = _Exchange(self, reply, address, self._monotonic())
        self._num_open += 1
        try:
            self._submit(exchange, payload, pairs)
        except HeadraceError as e:
            exchange.done(e)
        except Exception:
            # Whatever a request does to us, its caller gets an answer and the door stays up.
            log.exception("request-broke-the-door", request_id=exchange.request_id)
            exchange.done(InternalError(f"internal error, request {exchange.request_id}"))

    def _submit(self, exchange: _Exchange, payload: bytes, pairs: Pairs) -> None:
        address = exchange.address
        version = b"".join([value for name, value in pairs if name == VERSION]).decode("latin-1")
        found: h.Found = {}
        h.read_headers(pairs, found)
        echoed = h.request_id(found)
        if echoed is not None:
            exchange.request_id = echoed.decode()
        exchange.traceparent = h.traceparent(found)
        if h.IDEMPOTENCY_KEY in found:
            raise NotSupported("Idempotency-Key is not supported over NATS: rather refused than run twice")
        if self._identity.is_open and address.tenant != "default":
            raise NotFound(f"tenant {address.tenant!r} is not known")
        principal = self._identity.identify_tenant(_text(found, h.AUTHORIZATION), address.tenant)
        timeout_ms = parse_timeout_ms(
            _text(found, h.TIMEOUT), default_ms=self._settings.default_timeout_ms, max_ms=self._settings.max_timeout_ms
        )
        target = self._core.resolve(principal, address.service, address.model, version)
        length = _text(found, h.INFERENCE_LENGTH)
        decoded = decode(
            payload,
            None if length is None else header_length([length]),
            target.card,
            max_json_bytes=self._settings.max_json_bytes,
        )
        exchange.caller_id, exchange.form = decoded.caller_id, decoded.form
        deadline_s = exchange.began_s + timeout_ms / 1000
        decoded.ask(principal, exchange.request_id, deadline_s, exchange.traceparent)
        self._core.submit(target, decoded, exchange.done)

    def _drop(self, subject: str, reply: str, reason: str) -> None:
        self.num_unanswerable += 1
        log.warning("request-unanswerable", subject=subject, reply=reply, reason=reason)

    def failed(self, exchange: _Exchange, error: HeadraceError) -> None:
        """Say that a request ended badly."""
        address = exchange.address
        log_failure(
            error,
            door="nats",
            request_id=exchange.request_id,
            caller_id=exchange.caller_id,
            traceparent=exchange.traceparent,
            tenant=address.tenant,
            service=address.service,
            model=address.model,
            status=error.http_status,
            seconds=self._monotonic() - exchange.began_s,
        )

    def answered(self, code: str) -> None:
        """One exchange is over."""
        self.num_ended[code] += 1
        self._num_open -= 1
        if not self._num_open:
            self._emptied.set()

    def send(self, reply: str, payload: bytes, headers: list[tuple[str, str]]) -> None:
        """Publish an answer; `reply` was checked when the request came."""
        self._transport.publish_with_headers(reply, payload, headers)


class _Exchange:
    """One request and the one answer to it."""

    __slots__ = ("_door", "_reply", "address", "began_s", "caller_id", "form", "request_id", "traceparent")

    def __init__(self, door: NatsDoor, reply: str, address: DoorAddress, began_s: float) -> None:
        self._door = door
        self._reply = reply
        self.address = address
        self.began_s = began_s
        self.traceparent = ""
        self.request_id = token_hex(8)
        self.caller_id = ""
        self.form: OutputForm = JSON_FORM

    def done(self, outcome: Outcome) -> None:
        """The request's end, as a message."""
        code = ""
        try:
            if isinstance(outcome, Answer):
                self._answer(outcome)
            else:
                code = outcome.code
                self._door.failed(self, outcome)
                self._refuse(outcome)
        except HeadraceError as e:
            code = e.code
            self._try_to_refuse(e)
        except PayloadOverLimit as e:
            error = TooLarge(f"the answer has {e.payload_bytes} bytes, a NATS message takes {e.max_bytes}")
            code = error.code
            self._try_to_refuse(error)
        except TransportError as e:
            log.info("answer-not-sent", request_id=self.request_id, error=str(e))
        except Exception:
            log.exception("answer-broke-the-door", request_id=self.request_id)
            code = InternalError.code
            self._try_to_refuse(InternalError(f"internal error, request {self.request_id}"))
        finally:
            self._door.answered(code)

    def _answer(self, answer: Answer) -> None:
        encoded = encode(answer, self.caller_id, self.form)
        headers = [(STATUS, "200"), ("x-request-id", self.request_id)]
        if encoded.header_length is not None:
            headers.append((HEADER, str(encoded.header_length)))
        self._door.send(self._reply, b"".join(encoded.parts), headers)

    def _refuse(self, error: HeadraceError) -> None:
        text = error.message.encode("utf-8", "backslashreplace").decode()
        headers = [(STATUS, str(error.http_status)), ("x-request-id", self.request_id), *error_headers(error).items()]
        self._door.send(self._reply, orjson.dumps({"error": text, "code": error.code}), headers)

    def _try_to_refuse(self, error: HeadraceError) -> None:
        self._door.failed(self, error)
        try:
            self._refuse(error)
        except TransportError as e:
            log.info("answer-not-sent", request_id=self.request_id, error=str(e))
