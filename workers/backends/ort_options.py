"""What a config asks of ONNX Runtime: session options, providers and their options, as plain data. Pure.

Source: Triton onnxruntime_backend README ("Model Config Options", TensorRT and CUDA parameter tables).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from workers.backends.base import InstanceSource, LoadFailed
from workers.repository.parameters import ANY_BACKEND

_PROVIDERS: Final = {
    ("gpu", "tensorrt"): "TensorrtExecutionProvider",
    ("gpu", "cuda"): "CUDAExecutionProvider",
    ("cpu", "openvino"): "OpenVINOExecutionProvider",
}
CUDA: Final = "CUDAExecutionProvider"
CPU: Final = "CPUExecutionProvider"

_GRAPH_LEVELS: Final = {-1: "ORT_ENABLE_BASIC", 0: "ORT_ENABLE_ALL", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_TENSORRT: Final = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
"""Triton's own names; every other option of that provider begins with `trt_` and is passed by its name."""
_PRECISIONS: Final = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_CUDA_PARAMETERS: Final = (
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)
_CUDA_VALUES: Final = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
}
"""Triton numbers what ONNX Runtime's options name."""

_SESSION_ENTRIES: Final = (
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
    "session.set_denormal_as_zero",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.disable_prepacking",
    "session.force_spinning_stop",
)
_NUMBERS: Final = ("intra_op_thread_count", "inter_op_thread_count", "execution_mode")
_SWITCHES: Final = ("enable_mem_arena", "enable_mem_pattern", "memory.enable_memory_arena_shrinkage")
PARAMETERS: Final = (*_NUMBERS, *_SWITCHES, *_CUDA_PARAMETERS, *_SESSION_ENTRIES)
"""All that this backend takes; explained in docs/model_config.md."""
MAX_THREADS: Final = 1024


@dataclass(frozen=True, slots=True)
class OrtOptions:
    """Hashable, so that instances that want the same can share a session."""

    intra_op_threads: int
    inter_op_threads: int
    is_parallel: bool
    graph_level: str
    has_mem_arena: bool
    has_mem_pattern: bool
    arena_shrinkage: str
    """Devices whose arena shrinks after each run, as ONNX Runtime writes them; empty for none."""
    entries: tuple[tuple[str, str], ...]
    providers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Name and options of each provider, first choice first."""


def ort_options(source: InstanceSource) -> OrtOptions:
    """What the source's config asks for.

    Raises:
        LoadFailed: a parameter that isn't known, or a value out of its range; names both.
    """
    parameters = dict(source.config.parameters)
    _check_known(parameters)
    intra = _number(parameters, "intra_op_thread_count", source.intra_op_threads, MAX_THREADS)
    return OrtOptions(
        intra_op_threads=intra,
        inter_op_threads=_number(parameters, "inter_op_thread_count", 1, MAX_THREADS),
        is_parallel=bool(_number(parameters, "execution_mode", 0, 1)),
        graph_level=_graph_level(source.triton_config),
        has_mem_arena=_switch(parameters, "enable_mem_arena", default=True),
        has_mem_pattern=_switch(parameters, "enable_mem_pattern", default=True),
        arena_shrinkage=parameters.get("memory.enable_memory_arena_shrinkage", ""),
        entries=_entries(parameters),
        providers=_providers(source, parameters),
    )


def _check_known(parameters: Mapping[str, str]) -> None:
    for name in parameters:
        if name not in PARAMETERS and name not in ANY_BACKEND:
            known = ", ".join((*PARAMETERS, *ANY_BACKEND))
            raise LoadFailed(f"parameters[{name!r}] is not known to backend 'onnxruntime', known are {known}")


def _entries(parameters: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Spinning is off by default: with more instances than cores, threads that spin take cores from those that work."""
    entries = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    entries |= {name: parameters[name] for name in _SESSION_ENTRIES if name in parameters}
    return tuple(sorted(entries.items()))


def _graph_level(triton: Mapping[str, Any]) -> str:
    level = int(triton.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in _GRAPH_LEVELS:
        raise LoadFailed(f"optimization.graph.level = {level}, it must be one of {sorted(_GRAPH_LEVELS)}")
    return _GRAPH_LEVELS[level]


def _providers(
    source: InstanceSource, parameters: Mapping[str, str]
) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    asked = source.triton_config.get("optimization", {}).get("execution_accelerators", {})  # type: ignore[attr-defined]
    is_gpu = source.group.kind == "KIND_GPU"
    device = {"device_id": str(source.device_id or 0)}
    found: dict[str, dict[str, str]] = {}
    for kind in ("gpu", "cpu"):
        for accelerator in asked.get(f"{kind}_execution_accelerator", []):
            name = accelerator.get("name", "")
            provider = _PROVIDERS.get((kind, name))
            if provider is None:
                known = ", ".join(n for k, n in _PROVIDERS if k == kind)
                raise LoadFailed(f"{kind}_execution_accelerator {name!r} is not known, known are {known}")
            if is_gpu == (kind == "gpu"):
                options = _tensorrt(accelerator) if name == "tensorrt" else dict(accelerator.get("parameters", {}))
                found[provider] = {**(device if is_gpu else {}), **options}
    if is_gpu:
        found[CUDA] = {**device, **_cuda(parameters), **found.pop(CUDA, {})}
    found[CPU] = {}
    return tuple((name, tuple(sorted(options.items()))) for name, options in found.items())


def _tensorrt(accelerator: Mapping[str, Any]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in accelerator.get("parameters", {}).items():
        if name == "precision_mode":
            if value not in _PRECISIONS:
                raise LoadFailed(f"tensorrt: precision_mode = {value!r}, it must be one of {', '.join(_PRECISIONS)}")
            options |= _PRECISIONS[value]
        elif name in _TENSORRT or name.startswith("trt_"):
            options[_TENSORRT.get(name, name)] = value
        else:
            raise LoadFailed(f"tensorrt: parameter {name!r} is not known; ONNX Runtime's own begin with trt_")
    return options


def _cuda(parameters: Mapping[str, str]) -> dict[str, str]:
    options = {name: parameters[name] for name in _CUDA_PARAMETERS if name in parameters}
    return {name: _CUDA_VALUES.get(name, {}).get(value, value) for name, value in options.items()}


def _number(parameters: Mapping[str, str], name: str, default: int, largest: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) > largest:
        raise LoadFailed(f"parameters[{name!r}] = {text!r}, it must be a whole number, 0 to {largest}")
    return int(text)


def _switch(parameters: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = parameters.get(name)
    if text is None:
        return default
    if text.lower() not in ("0", "1", "true", "false"):
        raise LoadFailed(f"parameters[{name!r}] = {text!r}, it must be 0 or 1")
    return text.lower() in ("1", "true")
