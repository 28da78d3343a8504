"""Triton's JSON form of a config to our ModelConfig. Pure: what it can't honour it refuses by field and value.

Source: Triton model_configuration.md and model_config.proto (names, defaults and validation rules are Triton's).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from contract.errors import InvalidInput
from contract.model_config import InstanceGroup, ModelConfig, TensorSpec
from workers.cost import padding_cost
from workers.repository.batching import to_dynamic_batching
from workers.repository.honoured import refusals
from workers.repository.parameters import check_own, max_execution_s
from workers.repository.refusal import ConfigRefused
from workers.text.rules import text_rules

PLATFORMS: Final = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
"""Triton's old `platform` names and the backends that replaced them."""

MODEL_FILENAMES: Final = {
    "onnxruntime": "model.onnx",
    "python": "model.py",
    "pytorch": "model.pt",
    "tensorrt": "model.plan",
}
"""What a version folder holds where `default_model_filename` is not set."""

OIP_DATATYPES: Final = (
    {f"TYPE_{name}": name for name in ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8")}
    | {f"TYPE_{name}": name for name in ("INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64")}
    | {"TYPE_STRING": "BYTES"}
)


def to_model_config(triton: Mapping[str, Any], folder: str, *, gpu_ids: Sequence[int] = ()) -> ModelConfig:
    """The model's config as both sides see it. `gpu_ids` are the GPUs this machine offers to the model's backend.

    Raises:
        ConfigRefused: a field that is not honoured, or a value that can't be; names both.
    """
    if problem := next(refusals(triton), None):
        raise ConfigRefused(problem)
    max_batch_size = int(triton.get("max_batch_size", 0))
    if max_batch_size < 0:
        raise ConfigRefused(f"max_batch_size = {max_batch_size}, it can't be negative")
    backend = backend_of(triton)
    _check_accelerators(triton, backend)
    _check_warmup(triton)
    parameters = {key: str(value.get("string_value", "")) for key, value in triton.get("parameters", {}).items()}
    check_own(parameters)
    config = ModelConfig(
        name=model_name(triton, folder),
        backend=backend,
        platform=triton.get("platform", ""),
        max_batch_size=max_batch_size,
        inputs=_specs("input", triton.get("input", [])),
        outputs=_specs("output", triton.get("output", [])),
        dynamic_batching=to_dynamic_batching(triton.get("dynamic_batching"), max_batch_size),
        instance_groups=_groups(triton.get("instance_group", []), backend, gpu_ids),
        default_model_filename=model_filename(triton, backend),
        parameters=parameters,
        max_execution_s=max_execution_s(parameters),
        may_retry="retry" not in parameters,
    )
    _check_cost(config)
    _check_text(config)
    return config


def model_name(triton: Mapping[str, Any], folder: str) -> str:
    """The model's name: its folder's, which `name` may repeat but not contradict."""
    name = triton.get("name", "") or folder
    if name != folder:
        raise ConfigRefused(
            f"name = {name!r}, but the model's folder is {folder!r}; leave `name` out or make them equal"
        )
    return str(name)


def backend_of(triton: Mapping[str, Any]) -> str:
    """The backend that `backend` or `platform` names.

    Raises:
        ConfigRefused: neither is set, the platform is unknown, or the two disagree.
    """
    backend, platform = triton.get("backend", ""), triton.get("platform", "")
    if platform and platform not in PLATFORMS:
        raise ConfigRefused(f"platform = {platform!r} is not known, known are {', '.join(sorted(PLATFORMS))}")
    named = PLATFORMS.get(platform, "")
    if backend and named and backend != named:
        raise ConfigRefused(f"backend = {backend!r}, but platform = {platform!r} belongs to backend {named!r}")
    if not (backend or named):
        raise ConfigRefused("neither backend nor platform is set, and no version folder holds model.onnx or model.py")
    return str(backend or named)


def model_filename(triton: Mapping[str, Any], backend: str) -> str:
    """Name of the model's file in its version folder; empty where the backend has none by default."""
    name = triton.get("default_model_filename", "")
    return check_inside("default_model_filename", name) if name else MODEL_FILENAMES.get(backend, "")


def check_inside(field: str, name: str) -> str:
    """`name`, when it is a relative path that stays inside its folder.

    Raises:
        ConfigRefused: it is absolute or climbs out.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ConfigRefused(f"{field} = {name!r} leads out of the model's folder")
    return name


def _specs(kind: str, tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    specs = tuple(_spec(kind, at, tensor) for at, tensor in enumerate(tensors))
    names = [spec.name for spec in specs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigRefused(f"{kind} {twice!r} is given more than once")
    return specs


def _spec(kind: str, at: int, tensor: Mapping[str, Any]) -> TensorSpec:
    name = tensor.get("name", "")
    if not name:
        raise ConfigRefused(f"{kind}[{at}] has no name")
    data_type = tensor.get("data_type", "TYPE_INVALID")
    if data_type not in OIP_DATATYPES:
        raise ConfigRefused(f"{kind} {name!r}: data_type = {data_type}, it must be one of {', '.join(OIP_DATATYPES)}")
    dims = tuple(int(n) for n in tensor.get("dims", ()))
    _check_dims(f"{kind} {name!r}: dims", dims)
    if not dims:
        raise ConfigRefused(f"{kind} {name!r}: dims are missing; a value per row is dims: [1] reshape {{ shape: [] }}")
    layout = tensor.get("format", "FORMAT_NONE")
    if layout != "FORMAT_NONE" and len(dims) != 3:
        raise ConfigRefused(f"{kind} {name!r}: format = {layout} needs 3 dims, {list(dims)} are {len(dims)}")
    return TensorSpec(
        name=name,
        datatype=OIP_DATATYPES[data_type],
        dims=dims,
        is_optional=bool(tensor.get("optional", False)),
        is_ragged=bool(tensor.get("allow_ragged_batch", False)),
        reshape=_reshape(f"{kind} {name!r}", dims, tensor.get("reshape")),
    )


def _reshape(what: str, dims: tuple[int, ...], reshape: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    if reshape is None:
        return None
    shape = tuple(int(n) for n in reshape.get("shape", ()))
    _check_dims(f"{what}: reshape", shape)
    is_fixed = -1 not in dims and -1 not in shape
    if (is_fixed and math.prod(dims) != math.prod(shape)) or dims.count(-1) != shape.count(-1):
        raise ConfigRefused(f"{what}: reshape = {list(shape)} has another number of elements than dims = {list(dims)}")
    return shape


def _check_dims(what: str, dims: Sequence[int]) -> None:
    for size in dims:
        if size < 1 and size != -1:
            raise ConfigRefused(f"{what} = {list(dims)}: {size} is neither a size of at least 1 nor -1 (any size)")


def _groups(groups: Sequence[Mapping[str, Any]], backend: str, gpu_ids: Sequence[int]) -> tuple[InstanceGroup, ...]:
    """Instance groups with KIND_AUTO decided and every GPU named, so that their instances can be counted."""
    return tuple(_group(at, group, backend, gpu_ids) for at, group in enumerate(groups or [{}]))


def _group(at: int, group: Mapping[str, Any], backend: str, gpu_ids: Sequence[int]) -> InstanceGroup:
    what, gpus = f"instance_group[{at}]", tuple(int(g) for g in group.get("gpus", ()))
    kind, count = group.get("kind", "KIND_AUTO"), int(group.get("count", 0)) or 1
    if count < 0:
        raise ConfigRefused(f"{what}.count = {count}, it can't be negative")
    if kind == "KIND_AUTO":
        # The python backend leaves the device to model.py; unasked, it is told that it runs on the CPU.
        kind = "KIND_GPU" if gpus or (gpu_ids and backend != "python") else "KIND_CPU"
    if kind not in ("KIND_CPU", "KIND_GPU", "KIND_MODEL"):
        raise ConfigRefused(f"{what}.kind = {kind} is not supported")
    if kind == "KIND_MODEL" and backend != "python":
        raise ConfigRefused(f"{what}.kind = KIND_MODEL is not supported by backend {backend!r}, only by 'python'")
    if kind != "KIND_GPU" and gpus:
        raise ConfigRefused(f"{what}: kind = {kind} with gpus = {list(gpus)}; only KIND_GPU takes gpus")
    if kind == "KIND_GPU" and not gpus:
        gpus = tuple(gpu_ids)
    return InstanceGroup(count=count, kind=kind, gpus=gpus, name=group.get("name", ""))


def _check_accelerators(triton: Mapping[str, Any], backend: str) -> None:
    optimization = triton.get("optimization", {})
    for field in ("execution_accelerators", "graph"):
        if optimization.get(field) and backend != "onnxruntime":
            raise ConfigRefused(f"optimization.{field} is not supported by backend {backend!r}, only by 'onnxruntime'")


def _check_warmup(triton: Mapping[str, Any]) -> None:
    types = {tensor.get("name"): tensor.get("data_type") for tensor in triton.get("input", [])}
    for at, warmup in enumerate(triton.get("model_warmup", [])):
        for name, tensor in warmup.get("inputs", {}).items():
            what, given = f"model_warmup[{at}].inputs[{name!r}]", tensor.get("data_type", "TYPE_INVALID")
            if name not in types:
                raise ConfigRefused(f"{what}: the model has no such input, it has {', '.join(sorted(types)) or 'none'}")
            if given != types[name]:
                raise ConfigRefused(f"{what}.data_type = {given}, the input's is {types[name]}")


def _check_cost(config: ModelConfig) -> None:
    """Here rather than when its batcher is made, so that the reason stands in the repository index."""
    try:
        padding_cost(config)
    except InvalidInput as error:
        raise ConfigRefused(error.message) from None


def _check_text(config: ModelConfig) -> None:
    try:
        rules = text_rules(config)
    except InvalidInput as error:
        raise ConfigRefused(error.message) from None
    if rules is not None:
        check_inside("parameters['tokenizer']", rules.file)
