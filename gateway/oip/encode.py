"""A model's answer to an OIP response body: one JSON object, raw tensors behind it where asked for. Knows no HTTP.

NaN and infinities are written as the bare literals NaN, Infinity and -Infinity (Triton's form, which Python's and
tritonclient's JSON readers take); the body is always complete.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import orjson

from contract.errors import ModelFailed
from contract.tensors import NUMPY_TYPES
from gateway.core import Answer
from gateway.oip.json_numbers import non_finite_json, to_json
from gateway.oip.request import JSON_FORM, OutputForm

_WITH_NUMPY = orjson.OPT_SERIALIZE_NUMPY


class EncodedAnswer(NamedTuple):
    """A response body in parts; `header_length` is None where it is JSON only."""

    parts: list[bytes | memoryview]
    num_bytes: int
    header_length: int | None


def encode(answer: Answer, caller_id: str, form: OutputForm) -> EncodedAnswer:
    """The response body.

    Raises:
        InvalidInput: BYTES that are not UTF-8 are wanted as JSON.
        ModelFailed: a tensor's bytes do not fit its head.
    """
    outputs: list[dict[str, Any]] = []
    tensors: list[bytes | memoryview] = []
    for head, data in zip(answer.heads, answer.data, strict=True):
        output: dict[str, Any] = {"name": head.name, "datatype": head.datatype, "shape": head.shape}
        outputs.append(output)
        if form is not JSON_FORM and form.by_name.get(head.name, form.is_binary):
            output["parameters"] = {"binary_data_size": len(data)}
            tensors.append(data)
        else:
            try:
                output["data"] = to_json(head, data)
            except ValueError as e:
                raise ModelFailed(f"output {head.name!r}: {e}") from None
    response: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if caller_id:
        response["id"] = caller_id
    if answer.parameters:
        response["parameters"] = answer.parameters
    text = orjson.dumps(response, option=_WITH_NUMPY)
    # No value of a response is null but a NaN or an infinity; the word in a name or a text only costs a second look.
    if b"null" in text:
        text = _with_literals(response)
    if not tensors:
        return EncodedAnswer([text], len(text), None)
    return EncodedAnswer([text, *tensors], len(text) + sum(map(len, tensors)), len(text))


def _with_literals(response: dict[str, Any]) -> bytes:
    for output in response["outputs"]:
        values = output.get("data")
        if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values).all():
            output["data"] = orjson.Fragment(non_finite_json(values))
    parameters = response.get("parameters")
    if parameters:
        response["parameters"] = {name: _literal(value) for name, value in parameters.items()}
    return orjson.dumps(response, option=_WITH_NUMPY)


def _literal(value: object) -> object:
    if isinstance(value, float) and not np.isfinite(value):
        return orjson.Fragment(non_finite_json(np.array([value], NUMPY_TYPES["FP64"]))[1:-1])
    return value
