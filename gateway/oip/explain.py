"""Why a request's JSON is not an OIP request, in words that name the input and the field. Only raises.

The typed decoder says where a value is wrong; a caller wants to know which input that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from contract.errors import InvalidInput, TooLarge
from gateway.oip.json_numbers import shown

MAX_TENSORS: Final = 256
"""Inputs, and outputs, of one request."""
MAX_PIECES: Final = 500_000
"""Strings, arrays and objects of one request. Each costs half a microsecond and more, ten times as much as a number;
MiB of them would hold up all other requests for seconds."""


def check_counts(inputs: Sequence[object], outputs: Sequence[object] | None) -> None:
    """Raises InvalidInput where there are more tensors than any model has; looks at none of them."""
    for field, tensors in (("inputs", inputs), ("outputs", outputs or ())):
        if len(tensors) > MAX_TENSORS:
            raise InvalidInput(f"field {field!r} is an array of {len(tensors)}, at most {MAX_TENSORS} are taken")


def check_pieces(text: bytes) -> None:
    """Raises TooLarge where JSON is made of too many pieces; counts characters, so that it costs little itself."""
    num_strings = (text.count(b'"') - text.count(b'\\"')) // 2
    num_pieces = num_strings + text.count(b"[") + text.count(b"{")
    if num_pieces > MAX_PIECES:
        raise TooLarge(
            f"the request's JSON has {num_pieces} strings, arrays and objects, at most {MAX_PIECES} are taken; "
            f"send data as one flat array, or large tensors with the binary tensor data extension"
        )


def refuse(request: object, decoder_says: str) -> NoReturn:
    """Find the first field that is not as it must be; `decoder_says` is the answer where none is found.

    Raises:
        InvalidInput: always.
    """
    if not isinstance(request, dict):
        raise InvalidInput(f"the request is {shown(request)}, it must be a JSON object with the field 'inputs'")
    _check_list(request, "inputs", is_required=True)
    _check_list(request, "outputs", is_required=False)
    check_counts(request["inputs"], request.get("outputs"))
    for at, tensor in enumerate(request["inputs"]):
        _check_input(f"inputs[{at}]", tensor)
    for at, output in enumerate(request.get("outputs") or ()):
        _check_output(f"outputs[{at}]", output)
    if not isinstance(request.get("id"), str | None):
        raise InvalidInput(f"field 'id' is {shown(request['id'])}, it must be a string")
    _check_parameters("the request", request)
    raise InvalidInput(f"the request is no OIP request: {decoder_says}")


def _check_list(request: dict[str, Any], field: str, *, is_required: bool) -> None:
    if is_required and field not in request:
        raise InvalidInput(f"field {field!r} is missing from the request, it must be an array")
    value = request.get(field)
    if not isinstance(value, list) and (is_required or value is not None):
        raise InvalidInput(f"field {field!r} is {shown(value)}, it must be an array")


def _check_input(position: str, tensor: object) -> None:
    where = _named(position, tensor, "input")
    assert isinstance(tensor, dict)
    _check_string(where, tensor, "datatype")
    if "shape" not in tensor:
        raise InvalidInput(f"{where}: shape is missing, it must be an array of whole numbers")
    shape = tensor["shape"]
    if not isinstance(shape, list):
        raise InvalidInput(f"{where}: shape is {shown(shape)}, it must be an array of whole numbers")
    for at, size in enumerate(shape):
        if type(size) is not int or size < 0:
            raise InvalidInput(f"{where}: shape[{at}] is {shown(size)}, it must be a whole number of at least 0")
    if "data" in tensor and not isinstance(tensor["data"], list):
        raise InvalidInput(f"{where}: data is {shown(tensor['data'])}, it must be an array")
    _check_parameters(where, tensor)


def _check_output(position: str, output: object) -> None:
    where = _named(position, output, "output")
    assert isinstance(output, dict)
    _check_parameters(where, output)


def _named(position: str, tensor: object, kind: str) -> str:
    if not isinstance(tensor, dict):
        raise InvalidInput(f"{position} is {shown(tensor)}, it must be an object with the field 'name'")
    _check_string(position, tensor, "name")
    return f"{kind} {tensor['name'][:128]!r}"


def _check_string(where: str, tensor: dict[str, Any], field: str) -> None:
    if field not in tensor:
        raise InvalidInput(f"{where}: {field} is missing, it must be a string")
    if not isinstance(tensor[field], str):
        raise InvalidInput(f"{where}: {field} is {shown(tensor[field])}, it must be a string")


def _check_parameters(where: str, owner: dict[str, Any]) -> None:
    value = owner.get("parameters")
    if not isinstance(value, dict | None):
        raise InvalidInput(f"{where}: parameters is {shown(value)}, it must be an object")
