"""OIP tensors: datatypes, byte sizes, BYTES elements, raw bytes to numpy arrays and back. No JSON here.

Everything is little-endian and row-major. BF16 has no numpy type: its arrays hold the raw 16 bits as uint16.

Source: KServe OIP v2 "Tensor Data"; Triton binary tensor data extension.
Invariants: `to_array(from_array(x)) == x` for every datatype and shape (tests/property/test_tensors.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from contract.errors import InvalidInput
from contract.messages import TensorHead

Array = npt.NDArray[Any]

NUMPY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""numpy type of every fixed-size datatype; BYTES becomes an object array of `bytes`."""

DATATYPES: Final = (*NUMPY_TYPES, "BYTES")
_LENGTH = struct.Struct("<I")


def num_elements(shape: Sequence[int]) -> int:
    """Elements of a tensor of `shape`; 1 for a scalar."""
    return math.prod(shape)


def byte_size(datatype: str, shape: Sequence[int]) -> int | None:
    """Bytes of a raw tensor, or None for BYTES, whose elements have any length."""
    dtype = NUMPY_TYPES.get(datatype)
    return None if dtype is None else dtype.itemsize * math.prod(shape)


def encode_elements(elements: Iterable[bytes]) -> bytes:
    """BYTES elements as the binary extension has them: a 4-byte length in bytes before each."""
    return b"".join([part for e in elements for part in (_LENGTH.pack(len(e)), e)])


def decode_elements(name: str, data: bytes | memoryview, count: int) -> list[bytes]:
    """The `count` elements of a raw BYTES tensor.

    Raises:
        InvalidInput: a length that runs over the end, fewer or more elements than `count`; names the input.
    """
    view = memoryview(data)
    elements: list[bytes] = []
    at, end = 0, len(view)
    while at < end:
        if at + 4 > end:
            raise InvalidInput(f"input {name!r}: {end - at} bytes are left where a 4-byte element length belongs")
        (size,) = _LENGTH.unpack_from(view, at)
        at += 4
        if at + size > end:
            raise InvalidInput(f"input {name!r}: element {len(elements)} says {size} bytes, {end - at} are left")
        elements.append(bytes(view[at : at + size]))
        at += size
        if len(elements) > count:
            break
    if len(elements) != count:
        more = "more than " if len(elements) > count else ""
        found = count if more else len(elements)
        raise InvalidInput(f"input {name!r}: {more}{found} BYTES elements, its shape wants {count}")
    return elements


def to_array(head: TensorHead, data: bytes | memoryview) -> Array:
    """The tensor as an array of `head.shape`: a view of `data`, or an object array of bytes for BYTES.

    Raises:
        InvalidInput: size and shape disagree, or the datatype is unknown; names the tensor and both values.
    """
    dtype = NUMPY_TYPES.get(head.datatype)
    if dtype is None:
        if head.datatype != "BYTES":
            raise InvalidInput(f"tensor {head.name!r}: unknown datatype {head.datatype!r}")
        flat = np.empty(num_elements(head.shape), object)
        flat[:] = decode_elements(head.name, data, len(flat))
        return flat.reshape(head.shape)
    wanted = dtype.itemsize * num_elements(head.shape)
    if len(data) != wanted:
        raise InvalidInput(
            f"tensor {head.name!r}: {len(data)} bytes, {head.datatype} of shape {list(head.shape)} has {wanted}"
        )
    return np.frombuffer(data, dtype).reshape(head.shape)


def from_array(name: str, array: Array, datatype: str | None = None) -> tuple[TensorHead, bytes]:
    """Head and raw bytes of an array; `datatype` where the numpy type does not say it (BF16).

    Raises:
        InvalidInput: no OIP datatype has this numpy type; names the tensor and the type.
    """
    shape = tuple(int(n) for n in array.shape)
    found = datatype or datatype_of(array.dtype)
    if found is None:
        raise InvalidInput(f"tensor {name!r}: numpy type {array.dtype} has no OIP datatype")
    if found == "BYTES":
        return TensorHead(name, found, shape), encode_elements(_as_bytes(e) for e in array.reshape(-1))
    return TensorHead(name, found, shape), np.ascontiguousarray(array, NUMPY_TYPES[found]).tobytes()


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """OIP datatype of a numpy type (uint16 is UINT16, never BF16), or None."""
    if dtype.kind in "OSU":
        return "BYTES"
    if dtype.kind not in "?bBuif":
        return None
    for name, known in NUMPY_TYPES.items():
        if name != "BF16" and known == dtype.newbyteorder("<"):
            return name
    return None


def _as_bytes(element: object) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode()
    return bytes(element) if isinstance(element, bytearray | memoryview) else str(element).encode()
