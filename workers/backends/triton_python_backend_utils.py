"""What `import triton_python_backend_utils as pb_utils` gives a Triton model.py. Only put in place for models.

Written from the documented interface of Triton's python backend; no code of it is used. Names that are not here raise
an AttributeError that says whether they are not served or not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from contract.tensors import Array, decode_elements, encode_elements
from workers.backends.pb_model_config import ModelConfig
from workers.backends.pb_request import InferenceRequest, InferenceResponse, Logger, PreferredMemory, TritonError
from workers.backends.pb_tensor import (
    Tensor,
    TritonModelException,
    numpy_to_triton_type,
    triton_string_to_numpy,
    triton_to_numpy_type,
)

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_CPU_PINNED",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_MEMORY_CPU: Final = 0
TRITONSERVER_MEMORY_CPU_PINNED: Final = 1
TRITONSERVER_MEMORY_GPU: Final = 2
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
_FIXED_SIZE = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
TRITON_STRING_TO_NUMPY: Final = {
    f"TYPE_{name}": triton_string_to_numpy(f"TYPE_{name}") for name in (*_FIXED_SIZE, "STRING")
}

_NOT_SERVED: Final = {
    "Metric": "models can't register metrics of their own",
    "MetricFamily": "models can't register metrics of their own",
    "is_model_ready": "a model can't ask for another",
    "load_model": "a model can't load another",
    "unload_model": "a model can't unload another",
}


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of that name, or None."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output of that name, or None."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The config's input of that name, or None."""
    return next((properties for properties in model_config.get("input", ()) if properties["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The config's output of that name, or None."""
    return next((properties for properties in model_config.get("output", ()) if properties["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    """Whether the config says `decoupled`."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def serialize_byte_tensor(input_tensor: Array) -> Array:
    """BYTES elements with a 4-byte length before each, as one object that holds the bytes."""
    encoded = np.empty(1, np.object_)
    encoded[0] = encode_elements(e if isinstance(e, bytes) else str(e).encode() for e in input_tensor.reshape(-1))
    return encoded


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """The elements of a buffer as `serialize_byte_tensor` makes it."""
    num, at = 0, 0
    while at + 4 <= len(encoded_tensor):
        at += 4 + int.from_bytes(encoded_tensor[at : at + 4], "little")
        num += 1
    elements = np.empty(num, np.object_)
    elements[:] = decode_elements("", encoded_tensor, num)
    return elements


def __getattr__(name: str) -> Any:
    why = _NOT_SERVED.get(name, "no such name")
    raise AttributeError(f"triton_python_backend_utils.{name}: {why}")
