"""What `/v2` and the model routes tell: server and model metadata, extensions. Pure."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from contract.model_config import ModelCard, ModelConfig, TensorSpec
from contract.text import TEXT_INPUT, takes_text
from gateway.oip.plan import wanted_shape

EXTENSIONS: Final = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
"""Only what exists here; names as Triton spells them."""
_PLATFORMS: Final = {
    "onnxruntime": "onnxruntime_onnx",
    "pytorch": "pytorch_libtorch",
    "tensorrt": "tensorrt_plan",
}
"""Triton's platform of a model whose config names only its backend."""


def server_metadata() -> dict[str, Any]:
    """Answer of `GET /v2`."""
    return {"name": "headrace", "version": own_version(), "extensions": list(EXTENSIONS)}


def model_metadata(card: ModelCard) -> dict[str, Any]:
    """Answer of `GET /v2/models/{model}`: ready versions, and tensors with the batch dimension, -1 for any size."""
    config = card.config
    found: dict[str, Any] = {
        "name": config.name,
        "versions": list(reversed(card.ready_versions)),
        "platform": config.platform or _PLATFORMS.get(config.backend, config.backend),
        "inputs": [_tensor(config, spec) for spec in config.inputs],
        "outputs": [_tensor(config, spec) for spec in config.outputs],
    }
    if takes_text(config):
        found["parameters"] = {"text_input": TEXT_INPUT}  # in place of its ids; its own inputs are those above
    return found


def _tensor(config: ModelConfig, spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": wanted_shape(config, spec)}


def own_version() -> str:
    """Of this distribution."""
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0"
