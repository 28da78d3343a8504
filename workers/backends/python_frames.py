"""Messages between a worker and a model's process: a msgpack head and raw tensors, over a socket pair. No pickle.

    4 bytes head length | 8 bytes body length | head | body, each tensor at a multiple of 16

Invariants: what is sent is received, for every datatype (tests/unit/test_python_utils.py).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from contract.errors import HeadraceError, from_wire
from contract.messages import ParameterValue, TensorHead
from contract.model_config import InstanceGroup, ModelConfig
from contract.tensors import Array, datatype_of, encode_elements, to_array
from workers.backends.base import InstanceRequest, RequestResult

_LENGTHS = struct.Struct("<IQ")
_ALIGNMENT: Final = 16
"""numpy reads unaligned arrays slowly, and some libraries not at all."""
_MAX_PARTS: Final = 512
"""Buffers per system call; IOV_MAX is 1,024."""
MAX_BODY_BYTES: Final = 16 * 1024**3


class TensorPart(msgspec.Struct, array_like=True):
    """A tensor and where its bytes lie in the body."""

    head: TensorHead
    offset: int
    num_bytes: int


class RequestPart(msgspec.Struct, array_like=True):
    """One request of an execution."""

    tensors: list[TensorPart]
    outputs: tuple[str, ...]
    request_id: str
    correlation_id: int
    parameters: dict[str, ParameterValue]
    timeout_us: int


class ResultPart(msgspec.Struct, array_like=True):
    """One request's tensors, or its error."""

    tensors: list[TensorPart]
    code: str = ""
    message: str = ""


class Start(msgspec.Struct, tag=True):
    """What the process is to be; `only_complete` asks for `auto_complete_config` and nothing else."""

    config: ModelConfig
    version: str
    model_dir: str
    group: InstanceGroup
    index: int
    device_id: int | None
    triton_config: dict[str, Any]
    only_complete: bool = False


class Ready(msgspec.Struct, tag=True):
    """The model is initialized, or its config completed."""

    triton_config: dict[str, Any] = {}


class Run(msgspec.Struct, tag=True):
    """Execute these."""

    requests: list[RequestPart]


class Done(msgspec.Struct, tag=True):
    """A result per request."""

    results: list[ResultPart]


class Failed(msgspec.Struct, tag=True):
    """Loading, or an execution as a whole, failed."""

    message: str


class Stop(msgspec.Struct, tag=True):
    """Finalize and end."""


Message = Start | Ready | Run | Done | Failed | Stop
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Closed(Exception):
    """The other side is gone."""


def send(
    sock: socket.socket, message: Message, body: Sequence[memoryview] = (), deadline_s: float | None = None
) -> None:
    """Send one message; `body` must lie as its parts say.

    Raises:
        TimeoutError: the other side didn't read until `deadline_s` on the monotonic clock.
        Closed: the other side is gone.
    """
    head = _encoder.encode(message)
    size = sum(part.nbytes for part in body)
    parts = [memoryview(_LENGTHS.pack(len(head), size) + head), *body]
    while parts:
        _limit(sock, deadline_s)
        try:
            sent = sock.sendmsg(parts[:_MAX_PARTS])
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from None
        while parts and sent >= parts[0].nbytes:
            sent -= parts.pop(0).nbytes
        if sent:
            parts[0] = parts[0][sent:]


def receive(sock: socket.socket, deadline_s: float | None = None) -> tuple[Message, memoryview]:
    """The next message and its body, which is writable and the caller's own.

    Raises:
        TimeoutError: it wasn't there by `deadline_s` on the monotonic clock.
        Closed: the other side is gone, or speaks something else.
    """
    head_size, body_size = _LENGTHS.unpack(_read(sock, _LENGTHS.size, deadline_s))
    if body_size > MAX_BODY_BYTES:
        raise Closed(f"a body of {body_size} bytes is announced, at most {MAX_BODY_BYTES} are read")
    try:
        message = _decoder.decode(_read(sock, head_size, deadline_s))
    except msgspec.MsgspecError as error:
        raise Closed(str(error)) from None
    return message, _read(sock, body_size, deadline_s)


def pack_requests(requests: Sequence[InstanceRequest], datatypes: Mapping[str, str]) -> tuple[Run, list[memoryview]]:
    """The message and body of an execution; `datatypes` tells BF16 from UINT16."""
    body = _Body(datatypes)
    parts = [
        RequestPart(body.add(r.inputs), r.outputs, r.request_id, r.correlation_id, dict(r.parameters), r.timeout_us)
        for r in requests
    ]
    return Run(parts), body.buffers


def unpack_requests(message: Run, body: memoryview) -> list[InstanceRequest]:
    """The requests of an execution; their arrays are views of `body`."""
    return [
        InstanceRequest(
            _arrays(part.tensors, body),
            part.outputs,
            part.request_id,
            part.correlation_id,
            part.parameters,
            part.timeout_us,
        )
        for part in message.requests
    ]


def pack_results(results: Sequence[RequestResult], datatypes: Mapping[str, str]) -> tuple[Done, list[memoryview]]:
    """The message and body of what an execution gave."""
    body = _Body(datatypes)
    parts = [
        ResultPart([], result.code, result.message)
        if isinstance(result, HeadraceError)
        else ResultPart(body.add(result))
        for result in results
    ]
    return Done(parts), body.buffers


def unpack_results(message: Done, body: memoryview) -> list[RequestResult]:
    """What an execution gave; arrays are views of `body`."""
    return [
        from_wire(part.code, part.message) if part.code else _arrays(part.tensors, body) for part in message.results
    ]


class _Body:
    """Collects tensors without copying them, each at an aligned offset."""

    def __init__(self, datatypes: Mapping[str, str]) -> None:
        self.buffers: list[memoryview] = []
        self._datatypes = datatypes
        self._size = 0

    def add(self, arrays: Mapping[str, Array]) -> list[TensorPart]:
        return [self._add(name, array) for name, array in arrays.items()]

    def _add(self, name: str, array: Array) -> TensorPart:
        datatype = self._datatypes.get(name) or datatype_of(array.dtype) or "BYTES"
        if datatype == "BYTES":
            buffer = memoryview(encode_elements(array.reshape(-1)))
        else:
            buffer = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        part = TensorPart(TensorHead(name, datatype, tuple(array.shape)), self._size, buffer.nbytes)
        if buffer.nbytes:
            padding = -buffer.nbytes % _ALIGNMENT
            self.buffers += (buffer, memoryview(bytes(padding))) if padding else (buffer,)
            self._size += buffer.nbytes + padding
        return part


def _arrays(parts: Sequence[TensorPart], body: memoryview) -> dict[str, Array]:
    return {p.head.name: to_array(p.head, body[p.offset : p.offset + p.num_bytes]) for p in parts}


def _read(sock: socket.socket, num_bytes: int, deadline_s: float | None) -> memoryview:
    view = memoryview(bytearray(num_bytes))
    at = 0
    while at < num_bytes:
        _limit(sock, deadline_s)
        try:
            got = sock.recv_into(view[at:])
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed(str(error)) from None
        if not got:
            raise Closed("the other side closed the connection")
        at += got
    return view


def _limit(sock: socket.socket, deadline_s: float | None) -> None:
    """Blocking calls end at the deadline; without one they end when the other side does."""
    if deadline_s is None:
        sock.settimeout(None)
        return
    left = deadline_s - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
