"""A model's answer to an OIP response body: one JSON object, raw tensors behind it where asked for. Knows no HTTP.

NaN and infinities are written as the bare literals NaN, Infinity and -Infinity (Triton's form, which Python's and
tritonclient's JSON readers take); the body is always complete.
"""

from __future__ import annotations

import math
from typing import Any, Final

import orjson

from contract.messages import ParameterValue, TensorHead
from gateway.core import Answer
from gateway.oip.json_numbers import NAN_JSON, infinity_json, to_json
from gateway.oip.request import JSON_FORM, OutputForm

MAX_SKELETONS: Final = 1024
"""Looks of JSON responses remembered over all models."""


class EncodedAnswer:
    """A response body in parts; `header_length` is None where it is JSON only."""

    def __init__(self, parts: list[bytes | memoryview], num_bytes: int, header_length: int | None) -> None:
        self.parts = parts
        self.num_bytes = num_bytes
        self.header_length = header_length


def encode(answer: Answer, caller_id: str, form: OutputForm) -> EncodedAnswer:
    """The response body.

    Raises:
        InvalidInput: BYTES that are not UTF-8 are wanted as JSON.
        ModelFailed: a tensor's bytes do not fit its head.
    """
    if form is JSON_FORM and not answer.parameters and answer.heads:
        text = _json_only(answer, caller_id)
        return EncodedAnswer([text], len(text), None)
    outputs: list[dict[str, Any]] = []
    tensors: list[bytes | memoryview] = []
    for head, data in zip(answer.heads, answer.data, strict=True):
        output = _without_data(head)
        outputs.append(output)
        if form.by_name.get(head.name, form.is_binary):
            output["parameters"] = {"binary_data_size": len(data)}
            tensors.append(data)
        else:
            output["data"] = orjson.Fragment(to_json(head, data))
    response: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if caller_id:
        response["id"] = caller_id
    if answer.parameters:
        response["parameters"] = {name: _parameter(value) for name, value in answer.parameters.items()}
    text = orjson.dumps(response)
    if not tensors:
        return EncodedAnswer([text], len(text), None)
    return EncodedAnswer([text, *tensors], len(text) + sum(map(len, tensors)), len(text))


def _json_only(answer: Answer, caller_id: str) -> bytes:
    """The usual response: everything but the numbers is the same each time, and is made once."""
    heads = answer.heads
    skeleton = _latest[1] if heads is _latest[0] else _find_skeleton(answer)
    pieces: list[bytes] = []
    for before, head, data in zip(skeleton, heads, answer.data, strict=True):
        pieces += (before, to_json(head, data))
    pieces.append(b'}],"id":%b}' % orjson.dumps(caller_id) if caller_id else b"}]}")
    return b"".join(pieces)


def _find_skeleton(answer: Answer) -> list[bytes]:
    look = (answer.model, answer.version, answer.heads)
    skeleton = _skeletons.get(look)
    if skeleton is None:
        if len(_skeletons) >= MAX_SKELETONS:
            _skeletons.clear()
        skeleton = _skeletons[look] = _skeleton(answer)
    _latest[:] = answer.heads, skeleton
    return skeleton


_skeletons: dict[tuple[str, str, tuple[TensorHead, ...]], list[bytes]] = {}
_latest: list[Any] = [None, []]
"""Heads and skeleton of the last answer. Answers of one reply message share one heads object, and a message is of one
model and version, so its identity says it all."""


def _skeleton(answer: Answer) -> list[bytes]:
    """The text before each output's data."""
    model = orjson.dumps({"model_name": answer.model, "model_version": answer.version})
    opened = [orjson.dumps(_without_data(head))[:-1] + b',"data":' for head in answer.heads]
    return [model[:-1] + b',"outputs":[' + opened[0], *(b"}," + text for text in opened[1:])]


def _without_data(head: TensorHead) -> dict[str, Any]:
    return {"name": head.name, "datatype": head.datatype, "shape": head.shape}


def _parameter(value: ParameterValue) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return orjson.Fragment(NAN_JSON if math.isnan(value) else infinity_json(value))
    return value
