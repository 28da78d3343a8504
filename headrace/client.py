"""A small Python client: numpy in, numpy out, over HTTP. One connection, kept alive; not for use by several threads.

    from headrace.client import Client
    print(Client("http://127.0.0.1:8000").infer("toxicity", text=["hello"]).outputs)

Any Open Inference Protocol or Triton client works as well; this one needs numpy and nothing else.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

from contract.errors import HeadraceError, InvalidInput, Unavailable, from_wire
from headrace.oip import (
    HEADER_LENGTH,
    ArrayLike,
    InputSpec,
    Result,
    as_tensor,
    decode_answer,
    encode_request,
    input_specs,
)

_CODES = {400: "invalid-input", 401: "unauthenticated", 403: "forbidden", 404: "not-found", 413: "too-large"}


PATIENCE_S = 5.0
"""How much longer than the deadline the client listens: the gateway answers in time, with 504 if need be."""


class ServerAway(Unavailable, ConnectionError):
    """The gateway can't be reached, or left before it answered; the message names its url."""


class Client:
    """A connection to one gateway."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, key: str = "", timeout_s: float = 30.0) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidInput(f"{url!r} is not an http:// or https:// address")
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._connection = kind(parts.hostname, parts.port or (443 if secure else 80), timeout=timeout_s + PATIENCE_S)
        self._timeout_s = timeout_s
        self._key = key
        self._specs: dict[tuple[str, str], dict[str, InputSpec]] = {}

    def infer(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike] | None = None,
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        request_id: str = "",
        parameters: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        **tensors: ArrayLike,
    ) -> Result:
        """Ask a model; inputs as a mapping or by keyword. Lists and single values are fitted to the input's shape.

        Raises:
            HeadraceError: the class that its code names: InvalidInput, NotFound, QueueFull, DeadlineExceeded, ...
            ServerAway: nobody answers at the url; also a ConnectionError.
        """
        given = {**(inputs or {}), **tensors}
        try:
            specs = self.input_specs(model, version)
            unknown = [n for n in given if n not in specs]
            if unknown:
                raise InvalidInput(f"model {model!r} has no input {unknown[0]!r}, it has {sorted(specs)}")
            arrays = {n: (specs[n].datatype, as_tensor(v, specs[n])) for n, v in given.items()}
            body, header_length = encode_request(arrays, outputs=outputs, request_id=request_id, parameters=parameters)
            deadline_s = self._timeout_s if timeout_s is None else timeout_s
            headers = _headers(header_length, deadline_s)
            self._wait_at_most(deadline_s + PATIENCE_S)
            answer, length = self._ask("POST", f"{_path(model, version)}/infer", body, headers)
        except ServerAway as e:
            raise e.with_traceback(None) from None  # where in the client it was noticed helps nobody
        return decode_answer(answer, length)

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Inputs, outputs and versions of a model."""
        return self._get(_path(model, version))

    def config(self, model: str, version: str = "") -> dict[str, Any]:
        """A model's whole config in Triton's JSON form."""
        return self._get(f"{_path(model, version)}/config")

    def is_ready(self, model: str = "", version: str = "") -> bool:
        """Whether the gateway, or one model, can be asked now."""
        try:
            self._ask("GET", f"{_path(model, version)}/ready" if model else "/v2/health/ready")
        except HeadraceError:
            return False
        return True

    def input_specs(self, model: str, version: str = "") -> dict[str, InputSpec]:
        """Inputs of a model by name; asked once, then remembered."""
        found = self._specs.get((model, version))
        if found is None:
            found = self._specs[model, version] = input_specs(self.metadata(model, version))
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_at_most(self, seconds: float) -> None:
        self._connection.timeout = seconds
        if self._connection.sock is not None:
            self._connection.sock.settimeout(seconds)

    def _get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask("GET", path)[0])
        return found

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, int | None]:
        """Body and JSON length of a good answer."""
        sent = {**(headers or {}), **({"Authorization": f"Bearer {self._key}"} if self._key else {})}
        try:
            response = self._exchange(method, path, body, sent)
            answer = response.read()
        except (OSError, http.client.HTTPException) as e:
            self._connection.close()
            raise ServerAway(f"{self.url}: {_why(e)}") from None
        if response.status != 200:
            raise _error(response, answer)
        length = response.getheader(HEADER_LENGTH)
        return answer, int(length) if length else None

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        """One request; once more on a fresh connection where the server had closed the kept one before it answered."""
        is_reused = self._connection.sock is not None
        try:
            self._connection.request(method, path, body or None, headers)
            return self._connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._connection.close()
            if not is_reused:
                raise
        self._connection.request(method, path, body or None, headers)
        return self._connection.getresponse()


def _headers(header_length: int, deadline_s: float) -> dict[str, str]:
    return {
        HEADER_LENGTH: str(header_length),
        "Content-Type": "application/octet-stream",
        "Headrace-Timeout-Ms": str(max(1, int(deadline_s * 1000))),
    }


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there; is `headrace up` running?"
    return str(error) or type(error).__name__


def _path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _error(response: http.client.HTTPResponse, body: bytes) -> HeadraceError:
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace")[:500] or response.reason
    code = response.getheader("headrace-error") or _CODES.get(response.status, f"http-{response.status}")
    error = from_wire(code, text)
    retry_after = response.getheader("Retry-After") or ""
    error.retry_after_s = int(retry_after) if retry_after.isdigit() else error.retry_after_s
    return error
