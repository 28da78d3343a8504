"""Lists of JSON values to raw little-endian tensors, and raw tensors to JSON text. Never wraps, cuts or guesses.

One `struct` call packs a whole tensor and refuses what does not fit; only when it does is the list looked at value by
value, to say which one and why.

Invariants: decoding what was encoded gives the same bytes for every datatype (tests/property/test_oip_roundtrip.py).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from contract.errors import InvalidInput, ModelFailed
from contract.messages import TensorHead
from contract.tensors import NUMPY_TYPES, Array, decode_elements, encode_elements, num_elements

Pack = Callable[..., bytes]
"""Called as `pack(*values)`; raises one of PACK_ERRORS where a value or their number does not fit."""

PACK_ERRORS: Final = (struct.error, OverflowError, TypeError, AttributeError, UnicodeEncodeError)

_CODES: Final = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}
_FLOATS: Final = frozenset({"FP16", "BF16", "FP32", "FP64"})
NAN_JSON: Final = b"NaN"
_SMALL_BYTES: Final = 4096
_CHUNK: Final = 1024
_MAX_SHOWN: Final = 60  # characters of a caller's value in an error message


def packer(datatype: str, count: int) -> Pack:
    """The function that packs `count` flat values of a datatype."""
    code = _CODES.get(datatype)
    if code is not None:
        return struct.Struct(f"<{count}{code}").pack
    if datatype == "BF16":
        return _bf16_packer(count)
    return _bool_packer(count) if datatype == "BOOL" else _bytes_packer(count)


def pack_checked(head: TensorHead, values: list[Any]) -> bytes:
    """The raw tensor of flat or nested JSON values.

    Raises:
        InvalidInput: nesting, number, type or range of the values; names the input and what was found.
    """
    if not isinstance(values, list):
        raise InvalidInput(f"input {head.name!r}: it has neither data nor binary_data_size")
    types = set(map(type, values))
    flat = values
    if list in types:
        flat = _flatten(head, values)
        types = set(map(type, flat))
    wanted = num_elements(head.shape)
    if len(flat) != wanted:
        raise InvalidInput(
            f"input {head.name!r}: data has {len(flat)} values, shape {list(head.shape)} has room for {wanted}"
        )
    allowed = _json_types(head.datatype)
    if not types <= allowed:
        at = _first_bad(flat, lambda some: set(map(type, some)) <= allowed)
        raise InvalidInput(f"input {head.name!r}: data[{at}] is {shown(flat[at])}, {_wanted(head.datatype)}")
    try:
        return packer(head.datatype, wanted)(*flat)
    except PACK_ERRORS:
        at = _first_misfit(head.datatype, flat)
        raise InvalidInput(f"input {head.name!r}: data[{at}] is {shown(flat[at])}, {_wanted(head.datatype)}") from None


def shown(value: object) -> str:
    """A caller's JSON value for an error message, cut to a bound."""
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else infinity_json(value).decode()
    text = value if isinstance(value, str) else str(value) if not isinstance(value, int) else _int_text(value)
    cut = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return repr(cut) if isinstance(value, str) else cut


def to_json(head: TensorHead, data: memoryview) -> bytes:
    """A tensor's flat `data` as JSON text; NaN, Infinity and -Infinity are bare literals, Triton's and Python's form.

    Raises:
        InvalidInput: a BYTES element is not UTF-8; says to ask for binary output.
        ModelFailed: the bytes are no tensor of this datatype.
    """
    datatype = head.datatype
    if datatype == "BYTES":
        return orjson.dumps(_strings(head, data))
    dtype = NUMPY_TYPES[datatype]
    # orjson reads through typed pointers, but a tensor may lie at any offset of a message; for a small one copying
    # its bytes (a bytes object is aligned) costs less than asking.
    is_small = len(data) < _SMALL_BYTES
    try:
        values = np.frombuffer(bytes(data) if is_small else data, dtype)
    except ValueError as e:
        raise ModelFailed(f"output {head.name!r}: {len(data)} bytes of {head.datatype}: {e}") from None
    if datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif not is_small and not values.flags.aligned:
        values = values.copy()
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    return _with_literals(values, text) if b"null" in text else text


def _with_literals(values: Array, text: bytes) -> bytes:
    """What is not finite, orjson has written as null."""
    texts = text[1:-1].split(b",")
    for at in np.flatnonzero(~np.isfinite(values)):
        texts[at] = NAN_JSON if np.isnan(values[at]) else infinity_json(float(values[at]))
    return b"[" + b",".join(texts) + b"]"


def infinity_json(value: float) -> bytes:
    """An infinity as a bare literal."""
    return b"Infinity" if value > 0 else b"-Infinity"


def _strings(head: TensorHead, data: memoryview) -> list[str]:
    try:
        elements = decode_elements(head.name, data, num_elements(head.shape))
    except InvalidInput as e:
        raise ModelFailed(f"output {head.name!r} is no BYTES tensor: {e.message}") from None
    try:
        return [e.decode() for e in elements]
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output {head.name!r}: a BYTES element is not valid UTF-8 and cannot be written as JSON; "
            f"ask for it with binary_data true"
        ) from None


def _flatten(head: TensorHead, values: list[Any]) -> list[Any]:
    """Nested lists must follow the shape axis by axis."""
    level: list[Any] = [values]
    for axis, size in enumerate(head.shape):
        for item in level:
            if not isinstance(item, list) or len(item) != size:
                raise InvalidInput(
                    f"input {head.name!r}: data holds {shown(item)} at axis {axis}, "
                    f"shape {list(head.shape)} wants an array of {size} there"
                )
        level = list(chain.from_iterable(level))
    return level


def _json_types(datatype: str) -> frozenset[type]:
    if datatype in _FLOATS:
        return frozenset({int, float})
    return frozenset({{"BOOL": bool, "BYTES": str}.get(datatype, int)})


def _wanted(datatype: str) -> str:
    if datatype == "BOOL":
        return "BOOL wants true or false"
    if datatype == "BYTES":
        return "BYTES wants a string of valid Unicode"
    dtype = NUMPY_TYPES[datatype]
    if datatype in _FLOATS:
        highest = 3.3895313892515355e38 if datatype == "BF16" else float(np.finfo(dtype).max)
        return f"{datatype} wants a number from {-highest:.7g} to {highest:.7g}"
    info = np.iinfo(dtype)
    return f"{datatype} wants a whole number from {info.min} to {info.max}"


def _first_misfit(datatype: str, flat: list[Any]) -> int:
    def is_good(some: list[Any]) -> bool:
        try:
            packer(datatype, len(some))(*some)
        except PACK_ERRORS:
            return False
        return True

    return _first_bad(flat, is_good)


def _first_bad(values: list[Any], is_good: Callable[[list[Any]], bool]) -> int:
    """Where the first bad value is; judged chunk by chunk, as a million calls would keep all others waiting."""
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        if not is_good(chunk):
            return start + next(i for i, value in enumerate(chunk) if not is_good([value]))
    raise AssertionError("all values are good")


def _bool_packer(count: int) -> Pack:
    pack = struct.Struct(f"<{count}?").pack

    def pack_bools(*values: object) -> bytes:
        # struct takes the truth of anything; only JSON's own booleans are meant.
        if not set(map(type, values)) <= {bool}:
            raise TypeError("not a boolean")
        return pack(*values)

    return pack_bools


def _bf16_packer(count: int) -> Pack:
    pack = struct.Struct(f"<{count}f").pack

    def pack_bf16(*values: object) -> bytes:
        single = np.frombuffer(pack(*values), "<f4")
        bits = single.view(np.uint32)
        # Round to nearest, ties to even; a NaN keeps its upper bits and stays quiet.
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        halves = np.where(np.isnan(single), (bits >> 16) | 0x40, rounded).astype("<u2")
        if bool(np.any(((halves & 0x7FFF) == 0x7F80) & np.isfinite(single))):
            raise OverflowError("number too large for BF16")
        return halves.tobytes()

    return pack_bf16


def _bytes_packer(count: int) -> Pack:
    def pack_strings(*values: str) -> bytes:
        if len(values) != count:
            raise struct.error("number of elements")
        return encode_elements(_encoded(values))

    return pack_strings


def _encoded(values: tuple[str, ...]) -> Iterator[bytes]:
    return (value.encode() for value in values)


def _int_text(value: int) -> str:
    # str() of an int of thousands of digits is refused by Python itself.
    return str(value) if value.bit_length() < 256 else f"an integer of {value.bit_length()} bits"
