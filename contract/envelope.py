"""Messages to bytes and back: an 8-byte prefix, a msgpack header, the raw little-endian tensors behind it.

    | major u8 | minor u8 | kind u16 | header bytes u32 | msgpack header | body … |       little-endian

Another major version is refused; another minor version of the same major is read (see messages.py).

Invariants: `unpack(pack(m, parts)) == (m, b"".join(parts))`; truncated or foreign bytes raise, never crash
(tests/property/test_envelope.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from contract.errors import InvalidInput
from contract.messages import (
    CancelMessage,
    ControlReply,
    ControlRequest,
    GatewayBeat,
    ReplyMessage,
    RequestMessage,
    WorkerBeat,
)

FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 1

_PREFIX = struct.Struct("<BBHI")
PREFIX_BYTES: Final = _PREFIX.size
_KINDS: Final[dict[type, int]] = {
    RequestMessage: 1,
    ReplyMessage: 2,
    CancelMessage: 3,
    GatewayBeat: 4,
    WorkerBeat: 5,
    ControlRequest: 6,
    ControlReply: 7,
}
_DECODERS: Final[dict[type, msgspec.msgpack.Decoder[Any]]] = {cls: msgspec.msgpack.Decoder(cls) for cls in _KINDS}
_encode = msgspec.msgpack.Encoder().encode

M = TypeVar("M")


class BadEnvelope(InvalidInput):
    """The bytes are not a message of the wanted kind in a format version we read."""

    code = "bad-envelope"


def pack(message: object, body: Iterable[bytes | memoryview] = ()) -> bytes:
    """One message as bytes, `body` parts joined behind its header."""
    header = _encode(message)
    prefix = _PREFIX.pack(FORMAT_MAJOR, FORMAT_MINOR, _KINDS[type(message)], len(header))
    return b"".join((prefix, header, *body))


def unpack(kind: type[M], payload: bytes | memoryview) -> tuple[M, memoryview]:
    """The message in `payload` and its body (a view, not a copy).

    Raises:
        BadEnvelope: too short, another kind, another major version, or a header that does not decode.
    """
    if len(payload) < PREFIX_BYTES:
        raise BadEnvelope(f"a message of {len(payload)} bytes is shorter than its {PREFIX_BYTES}-byte prefix")
    major, minor, number, header_bytes = _PREFIX.unpack_from(payload)
    if major != FORMAT_MAJOR:
        raise BadEnvelope(f"message format {major}.{minor}, this process reads {FORMAT_MAJOR}.x")
    if number != _KINDS[kind]:
        raise BadEnvelope(f"message kind {number}, expected {_KINDS[kind]} ({kind.__name__})")
    end = PREFIX_BYTES + header_bytes
    if end > len(payload):
        raise BadEnvelope(f"header says {header_bytes} bytes, {len(payload) - PREFIX_BYTES} are there")
    view = memoryview(payload)
    try:
        return _DECODERS[kind].decode(view[PREFIX_BYTES:end]), view[end:]
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise BadEnvelope(f"{kind.__name__} header: {e}") from None
