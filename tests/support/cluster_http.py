"""A plain HTTP/1.1 caller for tests: one connection, nothing repeated, nothing hidden.

Unlike a client library it says whether an answer began, and it never sends a request twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

HOST = "127.0.0.1"
HEADER_LENGTH = "inference-header-content-length"
TIMEOUT = "headrace-timeout-ms"


class ConnectionEnded(Exception):
    """The server closed the connection before a whole answer was there."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float

    @property
    def code(self) -> str:
        return self.headers.get("headrace-error", "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of a refusal, whose form is checked on the way."""
        assert self.headers["content-type"] == "application/json"
        found = self.json
        assert list(found) == ["error"], found
        text: str = found["error"]
        assert text
        assert "Traceback" not in text
        return text

    @property
    def data(self) -> list[Any]:
        """The first output of a JSON answer."""
        assert self.status == 200, (self.status, self.body[:500])
        data: list[Any] = self.json["outputs"][0]["data"]
        return data

    def binary(self) -> bytes:
        """What follows the JSON part of a binary answer."""
        assert self.status == 200, (self.status, self.body[:500])
        return self.body[int(self.headers[HEADER_LENGTH]) :]


class Connection:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect, unless an open connection is there whose end the server has not announced."""
        if self._reader is not None and not self._reader.at_eof():
            return
        self.close()
        self._reader, self._writer = await asyncio.open_connection(HOST, self.port, limit=1 << 24)
        _OPEN.add(self._writer)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = (), within_s: float = 60.0
    ) -> Answered:
        """One request. Raises ConnectionRefusedError, ConnectionEnded, TimeoutError."""
        await self.open()
        started_s = time.monotonic()
        async with asyncio.timeout(within_s):
            await self.send(request_bytes(self.port, method, path, body, headers))
            status, found, answer = await self.receive()
        if found.get("connection") == "close":
            self.close()
        return Answered(status, found, answer, time.monotonic() - started_s)

    async def send(self, payload: bytes) -> None:
        """Raw bytes, however wrong."""
        assert self._writer is not None
        self._writer.write(payload)
        # Who refuses in the middle of a body closes; what it said can be read all the same.
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """One response, read to the end its headers announce."""
        reader = self._reader
        assert reader is not None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        except (asyncio.IncompleteReadError, ConnectionError) as e:
            self.close()
            raise ConnectionEnded(str(e)) from None
        return int(head[0].split()[1]), headers, body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            _OPEN.discard(self._writer)
        self._reader = self._writer = None


_OPEN: set[asyncio.StreamWriter] = set()


async def close_all() -> None:
    """Whatever a test that failed in the middle has left open."""
    while _OPEN:
        _OPEN.pop().transport.abort()
    await asyncio.sleep(0)  # the loop closes sockets in its next round


async def ask(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    within_s: float = 60.0,
) -> Answered:
    """One request on a connection of its own."""
    connection = Connection(port)
    try:
        return await connection.ask(method, path, body, headers, within_s)
    finally:
        connection.close()


async def infer(
    port: int, model: str, body: bytes, headers: Iterable[tuple[str, str]] = (), within_s: float = 60.0
) -> Answered:
    """One infer request on a connection of its own."""
    return await ask(port, "POST", f"/v2/models/{model}/infer", body, headers, within_s)


def request_bytes(
    port: int, method: str, path: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}:{port}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_request(
    values: list[Any],
    *,
    datatype: str = "FP32",
    name: str = "INPUT0",
    shape: list[Any] | None = None,
    request_id: str = "",
    **more: Any,
) -> bytes:
    """An OIP request of one row in JSON form."""
    tensor = {"name": name, "datatype": datatype, "shape": shape or [1, len(values)], "data": values}
    return json.dumps({**({"id": request_id} if request_id else {}), "inputs": [tensor], **more}).encode()


def binary_request(
    array: np.ndarray, *, datatype: str = "FP32", name: str = "INPUT0", wants_binary: bool = True, request_id: str = ""
) -> tuple[bytes, list[tuple[str, str]]]:
    """Body and headers of an OIP request in binary form."""
    raw = array.tobytes()
    tensor = {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "parameters": {"binary_data_size": len(raw)},
    }
    head = {"inputs": [tensor], "parameters": {"binary_data_output": wants_binary}}
    text = json.dumps({**({"id": request_id} if request_id else {}), **head}).encode()
    return text + raw, [(HEADER_LENGTH, str(len(text)))]
