"""An OIP request body to checked raw tensors. Knows no HTTP; the NATS door uses it as well.

    body ── split ── JSON ── typed decode ── plan.accept ── pack or take each tensor ── DecodedRequest
               └──── tensors behind it ─────────────────────────┘

Invariants: whatever the bytes are, the outcome is a DecodedRequest or a HeadraceError, and nothing is allocated from a
shape before it was held against the data (tests/property/test_oip_decode.py).
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

from contract.errors import InvalidInput, TooLarge
from contract.messages import TensorHead
from contract.model_config import ModelCard
from gateway.core import InferRequest
from gateway.oip import binary
from gateway.oip.explain import check_counts, check_pieces, refuse
from gateway.oip.json_numbers import PACK_ERRORS, pack_checked
from gateway.oip.parameters import NO_SETTINGS, check_number, read_outputs, read_parameters
from gateway.oip.plan import Accepted, Plan, plan_of
from gateway.oip.request import (
    BINARY_FORM,
    JSON_FORM,
    InputJson,
    LooseRequestJson,
    OutputForm,
    RequestJson,
)

MAX_JSON_BYTES: Final = 8 * 1024 * 1024
"""Default bound of the JSON part: it is decoded at one go on the event loop (about 0.3 s at this size, a second at
worst) and takes up to twenty times its size in memory meanwhile. Larger tensors belong in the binary form."""
MAX_EXPLAINED_BYTES: Final = 1024 * 1024
"""JSON up to this size is looked at value by value where the typed decoder refuses it; that takes ten times as long."""

_decode_json = msgspec.json.Decoder(RequestJson).decode
_decode_loose = msgspec.json.Decoder(LooseRequestJson).decode
_TOO_DEEP: Final = "the request's JSON is nested too deep"
_POSITION = re.compile(r"\(byte ([0-9]+)\)\Z")
_MAX_DIGITS: Final = 4300  # Python's own limit for the digits of a whole number


class DecodedRequest(InferRequest):
    """A request's body, decoded and checked against its model's config."""

    form: OutputForm = JSON_FORM
    """How its answer is to look."""


def decode(
    body: bytes | bytearray | memoryview,
    header_length: int | None,
    card: ModelCard,
    *,
    max_json_bytes: int = MAX_JSON_BYTES,
) -> DecodedRequest:
    """Decode and check one request; `header_length` is `binary.header_length` of its headers.

    Raises:
        InvalidInput: names the input or header, the field, what was found and what is wanted.
        TooLarge: the JSON part is over `max_json_bytes`.
    """
    if header_length is None and len(body) <= MAX_EXPLAINED_BYTES and len(body) <= max_json_bytes:
        plain = _plain(body, plan_of(card.config))
        if plain is not None:
            return plain
    if header_length == 0:
        return _raw(body, card)
    was_collecting = gc.isenabled()
    gc.disable()  # JSON holds no cycles; looking for some again and again takes longer than decoding
    try:
        return _thorough(body, header_length, card, max_json_bytes)
    finally:
        if was_collecting:
            gc.enable()


def _thorough(
    body: bytes | bytearray | memoryview, header_length: int | None, card: ModelCard, max_json_bytes: int
) -> DecodedRequest:
    """Everything the extensions allow, and the words for everything that is wrong."""
    text, section = _split(body, header_length, max_json_bytes)
    if not text:
        raise InvalidInput("the body is empty, it must be a JSON object with the field 'inputs'")
    request = _parse(text, header_length) if len(text) <= MAX_EXPLAINED_BYTES else _parse_large(text, header_length)
    check_counts(request.inputs, request.outputs)
    plan = plan_of(card.config)
    accepted = plan.accept(request.inputs)
    data = _tensors(request.inputs, accepted, section, is_loose=isinstance(request, LooseRequestJson))
    settings = read_parameters(request.parameters, card.config) if request.parameters else NO_SETTINGS
    outputs: tuple[str, ...] = ()
    classifications: tuple[int, ...] = ()
    form = OutputForm(is_binary=True) if settings.is_binary else JSON_FORM
    if request.outputs:
        outputs, form, classifications = read_outputs(request.outputs, plan, is_binary=settings.is_binary)
    sizes = [len(part) for part in data]
    decoded = DecodedRequest(
        accepted.rows,
        accepted.heads,
        data,
        tuple(sizes) if accepted.has_bytes else (),
        sum(sizes),
        request.id or "",
        settings.priority,
        settings.queue_timeout_us,
        outputs,
        settings.others,
        classifications,
    )
    decoded.form = form
    return decoded


def _split(
    body: bytes | bytearray | memoryview, header_length: int | None, max_json_bytes: int
) -> tuple[bytes, binary.Section | None]:
    """The JSON, and the tensors behind it where the request says where they begin."""
    if header_length is None:
        text, section = bytes(body), None
    else:
        text, tensors = binary.split(body, header_length)
        section = binary.Section(tensors)
    if len(text) > max_json_bytes:
        raise TooLarge(
            f"the request's JSON has {len(text)} bytes, at most {max_json_bytes} are taken; "
            f"send large tensors with the binary tensor data extension"
        )
    if len(text) > MAX_EXPLAINED_BYTES:
        check_pieces(text)
    return text, section


def _plain(body: bytes | bytearray | memoryview, plan: Plan) -> DecodedRequest | None:
    """The usual request: JSON numbers that fit, no parameters, all outputs as JSON. None sends it the thorough way."""
    try:
        request = _decode_json(body)
        if request.parameters or request.outputs:
            return None
        inputs = request.inputs
        accepted = plan.accept(inputs)
        data: list[bytes | memoryview] = []
        for tensor, pack in zip(inputs, accepted.packs, strict=True):
            if tensor.parameters:
                return None
            data.append(pack(*tensor.data))  # type: ignore[misc]  # UNSET raises TypeError
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, *PACK_ERRORS):
        return None
    sizes = tuple([len(part) for part in data]) if accepted.has_bytes else ()
    num_bytes = sum(sizes) if sizes else accepted.num_bytes
    return DecodedRequest(accepted.rows, accepted.heads, data, sizes, num_bytes, request.id or "")


def _raw(body: bytes | bytearray | memoryview, card: ModelCard) -> DecodedRequest:
    head, tensor = binary.raw_input(body, card.config)
    sizes = (len(tensor),) if head.datatype == "BYTES" else ()
    decoded = DecodedRequest(1, (head,), [tensor], sizes, len(tensor))
    decoded.form = BINARY_FORM
    return decoded


def _tensors(
    inputs: Sequence[InputJson], accepted: Accepted, section: binary.Section | None, *, is_loose: bool
) -> list[bytes | memoryview]:
    data: list[bytes | memoryview] = []
    for tensor, head, pack in zip(inputs, accepted.heads, accepted.packs, strict=True):
        if tensor.parameters:
            data.append(_with_parameters(tensor, head, section))
        elif is_loose:
            data.append(pack_checked(head, tensor.data))  # type: ignore[arg-type]  # UNSET is refused there
        else:
            try:
                data.append(pack(*tensor.data))  # type: ignore[misc]  # UNSET raises TypeError
            except PACK_ERRORS:
                data.append(pack_checked(head, tensor.data))  # type: ignore[arg-type]
    if section is not None:
        section.finish()
    return data


def _with_parameters(tensor: InputJson, head: TensorHead, section: binary.Section | None) -> bytes | memoryview:
    parameters: dict[str, Any] = tensor.parameters or {}
    check_number(f"input {head.name!r}", parameters)
    for name in parameters:
        if name.startswith("shared_memory"):
            raise InvalidInput(f"input {head.name!r}: parameter {name[:128]!r} is not supported here")
    if "binary_data_size" not in parameters:
        return pack_checked(head, tensor.data)  # type: ignore[arg-type]
    return (section or binary.Section(None)).take(
        head, parameters["binary_data_size"], has_data=tensor.data is not msgspec.UNSET
    )


def _parse(text: bytes, header_length: int | None) -> RequestJson | LooseRequestJson:
    """The typed JSON; whatever is wrong with it raises InvalidInput."""
    try:
        return _decode_json(text)
    except RecursionError:
        raise InvalidInput(_TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        request = _untyped(text, header_length)
    try:
        return msgspec.convert(request, LooseRequestJson)
    except msgspec.ValidationError as e:
        refuse(request, str(e))


def _parse_large(text: bytes, header_length: int | None) -> RequestJson | LooseRequestJson:
    """The same for JSON that only the typed decoders may see, lest one caller keep all others waiting."""
    try:
        try:
            return _decode_json(text)
        except msgspec.ValidationError as e:
            if ".data[" not in str(e):
                raise
            return _decode_loose(text)
    except RecursionError:
        raise InvalidInput(_TOO_DEEP) from None
    except msgspec.ValidationError as e:
        raise InvalidInput(f"the request is no OIP request: {e}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        at = _POSITION.search(str(e))
        near = text[max(0, int(at[1]) - 9) : int(at[1]) + 9] if at else b""
        if b"NaN" in near or b"Infinity" in near:
            raise InvalidInput(
                f"the request's JSON has {len(text)} bytes; over {MAX_EXPLAINED_BYTES} it may not hold NaN or "
                f"Infinity: send tensors that hold them with the binary tensor data extension"
            ) from None
        raise InvalidInput(_malformed(text, header_length, e)) from None


def _untyped(text: bytes, header_length: int | None) -> object:
    """Python's own decoder: it knows NaN and Infinity, and keeps what the typed one refused."""
    try:
        found = json.loads(text.decode(), parse_float=_finite, parse_int=_whole)
        orjson.dumps({k: v for k, v in found.items() if k in ("id", "parameters")} if isinstance(found, dict) else None)
    except RecursionError:
        raise InvalidInput(_TOO_DEEP) from None
    except (ValueError, TypeError) as e:
        raise InvalidInput(_malformed(text, header_length, e)) from None
    return found


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidInput(f"number {text[:64]} is out of range; infinity is written Infinity")
    return number


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise InvalidInput(f"number {text[:32]}… has {len(text)} digits, at most {_MAX_DIGITS} are taken")
    return int(text)


def _malformed(text: bytes, header_length: int | None, error: Exception) -> str:
    reason = str(error).removeprefix("JSON is malformed: ")
    if isinstance(error, UnicodeDecodeError):
        reason = f"byte {error.start} is not UTF-8"
    elif "surrogate" in reason:
        reason = f"a string is not valid Unicode ({reason})"
    if header_length is not None:
        return f"header {binary.HEADER} is {header_length}, but those bytes are no JSON request: {reason}"
    is_text = "UTF-8" not in reason and "Extra data" not in reason and "trailing" not in reason
    hint = "" if is_text and _is_utf8(text) else f"; a body with binary tensors needs the header {binary.HEADER}"
    return f"the request's JSON is malformed: {reason}{hint}"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
