"""Open Inference Protocol bodies from the caller's side: arrays to a request, an answer to arrays. Sends nothing.

Source: KServe OIP v2, "Inference"; Triton binary tensor data extension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.errors import InvalidInput
from contract.messages import TensorHead
from contract.tensors import NUMPY_TYPES, Array, from_array, to_array

HEADER_LENGTH = "Inference-Header-Content-Length"
ArrayLike = Array | Sequence[Any] | str | float


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A model's input as its metadata tells it; -1 in `shape` is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A model's answer."""

    model: str
    version: str
    id: str
    outputs: dict[str, Array]
    parameters: dict[str, Any]


def input_specs(metadata: Mapping[str, Any]) -> dict[str, InputSpec]:
    """Inputs by name from `GET /v2/models/<model>`, with the text that may stand in place of token ids."""
    specs = {
        i["name"]: InputSpec(i["name"], i["datatype"], tuple(int(n) for n in i["shape"]))
        for i in metadata.get("inputs", [])
    }
    text = (metadata.get("parameters") or {}).get("text_input")
    return {text: InputSpec(text, "BYTES", (-1, 1)), **specs} if text else specs


def as_tensor(value: ArrayLike, spec: InputSpec) -> Array:
    """The value as an array of the input's datatype. Arrays keep their shape; lists and single values are fitted to it.

    Shapes:
        `"a"` and `["a", "b"]` for an input of [-1, 1] become [1, 1] and [2, 1]; `[1, 2]` for [-1, -1] becomes [1, 2].

    Raises:
        InvalidInput: it has no such datatype; names the input, the value and the datatype.
    """
    dtype: Any = object if spec.datatype == "BYTES" else NUMPY_TYPES.get(spec.datatype)
    if isinstance(value, np.ndarray):
        return value if dtype is object or value.dtype == dtype or spec.datatype == "BF16" else value.astype(dtype)
    try:
        array: Array = np.array(value, dtype)
    except (ValueError, TypeError, OverflowError) as e:
        raise InvalidInput(f"input {spec.name!r}: {value!r} is not {spec.datatype} ({e})") from None
    while array.ndim < len(spec.shape):
        is_column = array.ndim == len(spec.shape) - 1 and spec.shape[-1] == 1 and array.ndim > 0
        array = array[..., np.newaxis] if is_column else array[np.newaxis]
    return array


def encode_request(
    inputs: Mapping[str, tuple[str, Array]],
    *,
    outputs: Sequence[str] = (),
    request_id: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> tuple[bytes, int]:
    """Body in the binary form and the length of its JSON part; `inputs` is datatype and array by name."""
    heads: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, (datatype, array) in inputs.items():
        head, raw = from_array(name, array, datatype)
        heads.append(_head(head) | {"parameters": {"binary_data_size": len(raw)}})
        parts.append(raw)
    request: dict[str, Any] = {"inputs": heads, "parameters": {**(parameters or {}), "binary_data_output": True}}
    if request_id:
        request["id"] = request_id
    if outputs:
        request["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    header = json.dumps(request, separators=(",", ":")).encode()
    return b"".join((header, *parts)), len(header)


def encode_json(
    inputs: Mapping[str, tuple[str, Array]], *, outputs: Sequence[str] = (), request_id: str = ""
) -> dict[str, Any]:
    """The same request in the JSON form."""
    request: dict[str, Any] = {"inputs": [_json_tensor(n, d, a) for n, (d, a) in inputs.items()]}
    if request_id:
        request["id"] = request_id
    if outputs:
        request["outputs"] = [{"name": name} for name in outputs]
    return request


def decode_answer(body: bytes, header_length: int | None) -> Result:
    """An answer in either form; `header_length` from its header, None for plain JSON."""
    at = len(body) if header_length is None else header_length
    answer = json.loads(body[:at])
    outputs: dict[str, Array] = {}
    for o in answer.get("outputs", []):
        head = TensorHead(o["name"], o["datatype"], tuple(o["shape"]))
        size = (o.get("parameters") or {}).get("binary_data_size")
        if size is None:
            outputs[head.name] = _from_json(head, o["data"])
            continue
        outputs[head.name] = to_array(head, body[at : at + size])
        at += size
    parameters = answer.get("parameters") or {}
    version = answer.get("model_version", "")
    return Result(answer.get("model_name", ""), version, answer.get("id", ""), outputs, parameters)


def _head(head: TensorHead) -> dict[str, Any]:
    return {"name": head.name, "datatype": head.datatype, "shape": list(head.shape)}


def _json_tensor(name: str, datatype: str, array: Array) -> dict[str, Any]:
    data = [e.decode() if isinstance(e, bytes) else e for e in array.reshape(-1).tolist()]
    return _head(TensorHead(name, datatype, tuple(array.shape))) | {"data": data}


def _from_json(head: TensorHead, data: list[Any]) -> Array:
    if head.datatype == "BYTES":
        flat: Array = np.empty(len(data), object)
        flat[:] = [e.encode() if isinstance(e, str) else e for e in data]
        return flat.reshape(head.shape)
    return np.array(data, NUMPY_TYPES[head.datatype]).reshape(head.shape)
