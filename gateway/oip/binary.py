"""Triton's binary tensor data extension: how a body splits into JSON and tensors, byte for byte. Copies no payload.

    Inference-Header-Content-Length: N     | JSON, N bytes | tensor | tensor | …      sizes in `binary_data_size`
    Inference-Header-Content-Length: 0     | the model's only input, raw |            (raw binary request)

Every byte is accounted for: a size that disagrees with the shape, a tensor that runs over the end and bytes that are
left over are refused, so that a wrong header cannot shift one tensor into another.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Final

from contract.errors import InvalidInput
from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import NUMPY_TYPES, byte_size, num_elements
from gateway.oip.json_numbers import shown

HEADER: Final = "Inference-Header-Content-Length"
_DIGITS = re.compile(r"[0-9]{1,18}\Z")
_LENGTH = struct.Struct("<I")


def header_length(values: Sequence[str]) -> int | None:
    """The JSON's length from every copy of the header that came; None where there is none.

    Raises:
        InvalidInput: more than one copy, or not a plain number.
    """
    if not values:
        return None
    if len(values) > 1:
        raise InvalidInput(f"header {HEADER} is given {len(values)} times")
    text = values[0].strip()
    if not _DIGITS.match(text):
        raise InvalidInput(f"header {HEADER} is {text[:64]!r}, it must be a whole number of bytes")
    return int(text)


def split(body: bytes | bytearray | memoryview, length: int) -> tuple[bytes, memoryview]:
    """The JSON part and the tensors behind it."""
    if length > len(body):
        raise InvalidInput(f"header {HEADER} is {length}, the whole body has {len(body)} bytes")
    view = memoryview(body)
    return bytes(view[:length]), view[length:]


class Section:
    """The tensors behind the JSON, taken in order."""

    def __init__(self, tensors: memoryview | None) -> None:
        self._tensors = tensors
        self._at = 0

    def take(self, head: TensorHead, size: Any, *, has_data: bool) -> memoryview:
        """The next tensor's bytes, `size` of them as the request's JSON says.

        Raises:
            InvalidInput: `size` is no size, disagrees with the shape or the body; BYTES elements do not add up.
        """
        where = f"input {head.name!r}: binary_data_size"
        if type(size) is not int or size < 0:
            raise InvalidInput(f"{where} is {shown(size)}, it must be a whole number of bytes")
        if has_data:
            raise InvalidInput(f"{where} is {size}, but data is given too; only one of them may be")
        if self._tensors is None:
            raise InvalidInput(f"{where} is {size}, but the request has no header {HEADER}")
        wanted = byte_size(head.datatype, head.shape)
        if wanted is not None and size != wanted:
            raise InvalidInput(f"{where} is {size}, {head.datatype} of shape {list(head.shape)} has {wanted} bytes")
        left = len(self._tensors) - self._at
        if size > left:
            raise InvalidInput(f"{where} is {size}, {left} bytes of the body are left (check header {HEADER})")
        tensor = self._tensors[self._at : self._at + size]
        self._at += size
        check_payload(head, tensor)
        return tensor

    def finish(self) -> None:
        """Raises InvalidInput where bytes are left over."""
        left = len(self._tensors) - self._at if self._tensors is not None else 0
        if left:
            raise InvalidInput(f"{left} bytes are left over behind the last tensor (check header {HEADER})")


def raw_input(body: bytes | bytearray | memoryview, config: ModelConfig) -> tuple[TensorHead, memoryview | bytes]:
    """A raw binary request: the whole body is the model's only input, one row of it.

    A BYTES input is one element; of other datatypes at most one dimension may be open, and the body's size says it.

    Raises:
        InvalidInput: the model has another number of inputs, or the body's size fits no shape.
    """
    if len(config.inputs) != 1:
        raise InvalidInput(
            f"header {HEADER} is 0 (a raw binary request), which needs a model with one input; "
            f"model {config.name!r} has {len(config.inputs)}"
        )
    spec = config.inputs[0]
    if _is_json_request(body, spec):
        raise InvalidInput(f"header {HEADER} is 0 (a raw binary request), but the body begins with a JSON request")
    batch = (1,) if config.max_batch_size else ()
    if spec.datatype == "BYTES":
        if num_elements([abs(n) for n in spec.dims]) != 1:
            raise InvalidInput(
                f"input {spec.name!r}: a raw binary request is one BYTES element, "
                f"the model wants shape {list(spec.dims)}"
            )
        shape = batch + tuple(abs(n) for n in spec.dims)
        return TensorHead(spec.name, "BYTES", shape), b"".join((_LENGTH.pack(len(body)), body))
    head = TensorHead(spec.name, spec.datatype, batch + _inferred_dims(spec, len(body)))
    view = memoryview(body)
    check_payload(head, view)
    return head, view


def check_payload(head: TensorHead, tensor: memoryview) -> None:
    """Raises InvalidInput where BYTES lengths do not add up or a BOOL byte is neither 0 nor 1."""
    if head.datatype == "BYTES":
        _check_elements(head, tensor)
    elif head.datatype == "BOOL" and tensor.tobytes().translate(None, b"\x00\x01"):
        raise InvalidInput(f"input {head.name!r}: a BOOL byte is neither 0 nor 1")


def _inferred_dims(spec: TensorSpec, body_bytes: int) -> tuple[int, ...]:
    fixed = NUMPY_TYPES[spec.datatype].itemsize * num_elements([n for n in spec.dims if n >= 0])
    num_open = sum(n < 0 for n in spec.dims)
    if num_open > 1:
        raise InvalidInput(
            f"input {spec.name!r}: header {HEADER} is 0 (a raw binary request), but the model's shape "
            f"{list(spec.dims)} has {num_open} open dimensions; send the shape as JSON"
        )
    if num_open == 0 and body_bytes != fixed:
        raise InvalidInput(
            f"input {spec.name!r}: header {HEADER} is 0 (a raw binary request) and the body has {body_bytes} bytes, "
            f"{spec.datatype} of shape {list(spec.dims)} has {fixed}"
        )
    if num_open and (fixed == 0 or body_bytes % fixed):
        raise InvalidInput(
            f"input {spec.name!r}: header {HEADER} is 0 (a raw binary request) and the body has {body_bytes} bytes, "
            f"no multiple of the {fixed} that {spec.datatype} of shape {list(spec.dims)} needs"
        )
    return tuple(n if n >= 0 else body_bytes // fixed for n in spec.dims)


def _is_json_request(body: bytes | bytearray | memoryview, spec: TensorSpec) -> bool:
    """Whether the caller meant another length: JSON that names this input with its size is no tensor of it."""
    start = bytes(memoryview(body)[:65536])
    return (
        start.lstrip()[:1] == b"{"
        and b'"inputs"' in start
        and (spec.datatype != "BYTES" or (b'"binary_data_size"' in start and f'"{spec.name}"'.encode() in start))
    )


def _check_elements(head: TensorHead, tensor: memoryview) -> None:
    wanted = num_elements(head.shape)
    at, end, found = 0, len(tensor), 0
    while at < end and found < wanted:
        if at + 4 > end:
            raise InvalidInput(f"input {head.name!r}: {end - at} bytes are left where a 4-byte element length belongs")
        (size,) = _LENGTH.unpack_from(tensor, at)
        at += 4 + size
        if at > end:
            raise InvalidInput(
                f"input {head.name!r}: BYTES element {found} says {size} bytes, {end - at + size} are left"
            )
        found += 1
    if at < end:
        raise InvalidInput(
            f"input {head.name!r}: {end - at} bytes are left over behind the {wanted} BYTES elements of "
            f"shape {list(head.shape)}"
        )
    if found != wanted:
        raise InvalidInput(
            f"input {head.name!r}: {found} BYTES elements, shape {list(head.shape)} has room for {wanted}"
        )
