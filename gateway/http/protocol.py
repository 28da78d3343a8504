"""uvicorn's HTTP protocol, with the infer route answered inside it. Decodes no body; exchange.py does.

    bytes → httptools → POST /v2/models/…/infer → Exchange        no ASGI scope, task or timer per request
                     ↘ everything else         → uvicorn's cycle → Starlette

Invariants: no byte of one request is read as another's; what a caller can make us hold is bounded
(tests/integration/http_door).
"""

from __future__ import annotations

from typing import Final

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from contract.errors import HeadraceError, InvalidInput, TooLarge, Unavailable
from gateway.http import headers as h
from gateway.http.doorway import Doorway
from gateway.http.exchange import Exchange
from gateway.http.paths import PREFIX, ModelPath, parse_model_path
from gateway.http.turns import TurnProtocol

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and headers; also what may come without bringing a request any further."""
MAX_ROUTES: Final = 4096
_ROUTE_BYTES: Final = 512  # longer paths are legal, but not worth remembering
_SMALL_BYTES: Final = 64 * 1024  # a body up to this size is never refused for what others are sending


class HttpProtocol(TurnProtocol):
    """One connection of the HTTP door: from bytes to requests."""

    def __init__(self, config: Config, server_state: ServerState, doorway: Doorway) -> None:
        super().__init__(config, server_state, doorway)
        self._receiving: Exchange | None = None
        self._silent_bytes = 0
        self._read_bytes = 0
        self._counted_bytes = 0
        self._unparsed_bytes = 0  # of a body that the parser leaves to us

    # ------------------------------------------------------------------ the parser's calls

    def data_received(self, data: bytes) -> None:
        """Bytes from the caller."""
        if self.is_deaf:
            return
        self.seen_tick = self.doorway.tick
        if self._unparsed_bytes:
            self._take_unparsed(data)
            return
        self._read_bytes = len(data)
        self._silent_bytes += self._read_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as e:
            self._take_unparsed(data[e.args[0] :])
            return
        except httptools.HttpParserError:
            self.refuse(InvalidInput("the request is not valid HTTP/1.1"))
            return
        if self._silent_bytes > MAX_HEAD_BYTES:
            self.refuse(_HEAD_OVER, 431)

    def on_message_begin(self) -> None:
        """A request starts; whose it is shows at the end of its headers."""
        self.url = b""
        self.headers = []
        self.is_mid_message = True
        self.began_tick = self.doorway.tick
        self._receiving = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or trailer."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Ours, or Starlette's?"""
        # Only a large read can bring a head over the limit whole; all others are not worth counting.
        is_over = (self._silent_bytes > MAX_HEAD_BYTES or self._read_bytes > MAX_HEAD_BYTES) and (
            _head_bytes(self.url, self.headers) > MAX_HEAD_BYTES
        )
        self._silent_bytes = 0
        if self.is_deaf:
            return
        if is_over:
            self.refuse(_HEAD_OVER, 431)
            return
        try:
            path = self._infer_path()
        except InvalidInput as e:
            self._receive(None, e)
            return
        if path is not None and self._receive(path, None):
            return
        if self.parser.should_upgrade() and _has_body(self.headers):
            self.refuse(InvalidInput("Upgrade is not supported here"))
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body: small ones come whole and are kept as they are."""
        self._silent_bytes = 0
        exchange = self._receiving
        if exchange is None:
            if not self.is_deaf:
                super().on_body(body)
        elif not exchange.body:
            exchange.body = body
        else:
            self._append(exchange, body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._unparsed_bytes:
            return
        self._silent_bytes = 0
        self.is_mid_message = False
        exchange, self._receiving = self._receiving, None
        if exchange is None:
            if not self.is_deaf:
                super().on_message_complete()
            return
        if self._counted_bytes:
            self._uncount()
        exchange.is_received = True
        if len(exchange.body) > self.doorway.max_request_bytes:
            exchange.error = _over(len(exchange.body), self.doorway.max_request_bytes)
        if exchange.is_turn:
            exchange.begin()

    # ------------------------------------------------------------------ receiving

    def _infer_path(self) -> ModelPath | None:
        if self.parser.get_method() != b"POST":
            return None
        url = self.url
        known = _routes.get(url)
        if known is not None:
            return known
        if url.startswith((b"http://", b"https://")):
            url = httptools.parse_url(url).path or b""
        if not url.startswith(PREFIX):
            return None
        path = parse_model_path(url.partition(b"?")[0])
        if path is None or path.action != "infer":
            return None
        if len(self.url) <= _ROUTE_BYTES:
            if len(_routes) >= MAX_ROUTES:
                _routes.clear()
            _routes[self.url] = path
        return path

    def _receive(self, path: ModelPath | None, error: HeadraceError | None) -> bool:
        """Start an exchange; False leaves a caller with a preference or an idempotency key to Starlette."""
        found: h.Found = {}
        try:
            h.read_headers(self.headers, found)
        except InvalidInput as e:
            error = error or e
        if (h.PREFER in found or h.IDEMPOTENCY_KEY in found) and error is None:
            return False
        exchange = Exchange(self, self.doorway, path, found, keep_alive=self.parser.should_keep_alive())
        self._receiving = exchange
        if error is not None:
            exchange.error = error
        if h.EXPECT in found:
            exchange.wants_continue = found[h.EXPECT].lower() == b"100-continue"
        announced = int(found.get(h.CONTENT_LENGTH, 0))
        if h.CONNECTION in found:
            if self.parser.get_http_version() == "1.0":
                exchange.keep_alive = False
            if self.parser.should_upgrade():
                self._unparsed_bytes = announced
                if _is_chunked(self.headers):
                    self.refuse(InvalidInput("a request with Upgrade must say its length with Content-Length"))
                    return True
        if announced > self.doorway.max_request_bytes:
            self.refuse(_over(announced, self.doorway.max_request_bytes))
        else:
            self.enqueue(exchange)
        return True

    def _take_unparsed(self, data: bytes) -> None:
        """No other protocol is spoken here, so that a request with `Upgrade` is answered as the HTTP it is; its body
        the parser takes for the other protocol and leaves to us.
        """
        body, rest = data[: self._unparsed_bytes], data[self._unparsed_bytes :]
        if body:
            self.on_body(body)
            self._unparsed_bytes -= len(body)
            if not self._unparsed_bytes:
                self.on_message_complete()
        if rest:
            self.data_received(rest)

    def _append(self, exchange: Exchange, body: bytes) -> None:
        added = len(body)
        if isinstance(exchange.body, bytes):
            added += len(exchange.body)
            exchange.body = bytearray(exchange.body)
        exchange.body += body
        self._counted_bytes += added
        doorway = self.doorway
        doorway.receiving_bytes += added
        if len(exchange.body) > doorway.max_request_bytes:
            self.refuse(_over(len(exchange.body), doorway.max_request_bytes))
        elif doorway.receiving_bytes > doorway.max_receiving_bytes and self._counted_bytes > _SMALL_BYTES:
            self.refuse(Unavailable(f"bodies of over {doorway.max_receiving_bytes} bytes are being received"))
        elif not exchange.is_turn and self._counted_bytes > _SMALL_BYTES:
            self.flow.pause_reading()

    def _uncount(self) -> None:
        self.doorway.receiving_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def refuse(self, error: HeadraceError, status: int = 0) -> None:
        """Answer `error` in its turn, read nothing more, close."""
        self.is_deaf = True
        self._uncount()
        exchange, self._receiving = self._receiving, None
        if exchange is None and self.is_mid_message and getattr(self.cycle, "more_body", False):
            self.transport.close()  # uvicorn's cycle waits for a body that cannot come
            return
        is_new = exchange is None or exchange is not self.cycle
        if exchange is None:
            exchange = Exchange(self, self.doorway, None, {}, keep_alive=False)
        self.is_mid_message = False
        exchange.body = b""
        exchange.error, exchange.error_status = error, status
        exchange.keep_alive = False
        exchange.is_received = True
        if is_new:
            self.enqueue(exchange)
        elif exchange.is_turn:
            exchange.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller left, perhaps in the middle of a body."""
        self._uncount()
        self._receiving = None
        super().connection_lost(exc)


_routes: dict[bytes, ModelPath] = {}
_HEAD_OVER: Final = TooLarge(f"request line and headers are over {MAX_HEAD_BYTES} bytes")


def _head_bytes(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """As sent, with the usual spaces: method, version and three line ends are 20 bytes or more."""
    return 20 + len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


def _is_chunked(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" for name, _ in headers)


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return _is_chunked(headers) or any(name == h.CONTENT_LENGTH and value != b"0" for name, value in headers)


def _over(num_bytes: int, limit: int) -> TooLarge:
    return TooLarge(f"the body has {num_bytes} bytes or more, at most {limit} are taken")
