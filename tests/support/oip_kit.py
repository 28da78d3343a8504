"""Models and requests for the tests of the decoder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.errors import InvalidInput
from contract.model_config import ModelCard, ModelConfig, TensorSpec
from gateway.oip.decode import decode

IDENT_F32 = ModelConfig(
    "ident_f32",
    "python",
    max_batch_size=8,
    inputs=(TensorSpec("IN", "FP32", (-1,)),),
    outputs=(TensorSpec("OUT", "FP32", (-1,)),),
)
IDENT_I32 = ModelConfig(
    "ident_i32",
    "python",
    max_batch_size=8,
    inputs=(TensorSpec("IN", "INT32", (4,)),),
    outputs=(TensorSpec("OUT", "INT32", (4,)),),
)
IDENT_BYTES = ModelConfig(
    "ident_bytes",
    "python",
    inputs=(TensorSpec("IN", "BYTES", (-1,)),),
    outputs=(TensorSpec("OUT", "BYTES", (-1,)),),
)
TWO = ModelConfig(
    "two",
    "python",
    max_batch_size=4,
    inputs=(
        TensorSpec("A", "FP32", (2,)),
        TensorSpec("B", "FP32", (2,)),
        TensorSpec("C", "INT8", (1,), is_optional=True),
    ),
    outputs=(TensorSpec("SUM", "FP32", (2,)), TensorSpec("DIFF", "FP32", (2,))),
)


def card(config: ModelConfig) -> ModelCard:
    return ModelCard(config, ())


def flat(datatype: str, dims: tuple[int, ...] = (-1,)) -> ModelCard:
    return card(ModelConfig("m", "python", inputs=(TensorSpec("IN", datatype, dims),)))


def tensor(**changes: Any) -> dict[str, Any]:
    fields = {"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def refusal(raw: bytes, config: ModelConfig | ModelCard = IDENT_F32, length: int | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        decode(raw, length, config if isinstance(config, ModelCard) else card(config))
    return caught.value.message
