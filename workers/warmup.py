"""The executions an instance makes before it is ready: the config's `model_warmup`, or one of zeros. Runs nothing.

Source: Triton model_config.proto, ModelWarmup (zero_data, random_data, input_data_file in `warmup/`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from contract.errors import InvalidInput
from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import NUMPY_TYPES, Array, to_array

WARMUP_FOLDER: Final = "warmup"
MAX_WARMUP_RUNS: Final = 1_000
_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class WarmupRun:
    """One execution: `count` times with the same inputs."""

    name: str
    inputs: Mapping[str, Array]
    count: int = 1


def configured_runs(config: ModelConfig, triton: Mapping[str, Any], model_dir: Path) -> list[WarmupRun]:
    """What `model_warmup` asks for.

    Raises:
        InvalidInput: it names an input that the model has not, or a file that does not fit; OSError for a missing one.
    """
    return [_configured(config, entry, model_dir) for entry in triton.get("model_warmup", ())]


def zero_run(config: ModelConfig) -> WarmupRun:
    """One row of zeros; open dimensions get size 1, optional inputs are left out."""
    inputs = {
        spec.name: _zeros(spec.datatype, _shape(config, 1, [max(1, d) for d in spec.dims]))
        for spec in config.inputs
        if not spec.is_optional
    }
    return WarmupRun("zeros", inputs)


def _configured(config: ModelConfig, entry: Mapping[str, Any], model_dir: Path) -> WarmupRun:
    specs = {spec.name: spec for spec in config.inputs}
    rows = max(1, int(entry.get("batch_size", 1)))
    inputs: dict[str, Array] = {}
    for name, tensor in entry.get("inputs", {}).items():
        spec = specs.get(name)
        if spec is None:
            raise InvalidInput(f"model_warmup input {name!r}: the model has {sorted(specs)}")
        dims = [int(d) for d in tensor.get("dims", ())] or [max(1, d) for d in spec.dims]
        shape = _shape(config, rows, dims)
        inputs[name] = _data(spec, shape, tensor, model_dir)
    count = min(MAX_WARMUP_RUNS, max(1, int(entry.get("count", 0) or 1)))
    return WarmupRun(str(entry.get("name", "")), inputs, count)


def _data(spec: TensorSpec, shape: Sequence[int], tensor: Mapping[str, Any], model_dir: Path) -> Array:
    if file := tensor.get("input_data_file"):
        data = (model_dir / WARMUP_FOLDER / str(file)).read_bytes()
        return to_array(TensorHead(spec.name, spec.datatype, tuple(shape)), data)
    if tensor.get("random_data"):
        return _random(spec.datatype, shape)
    return _zeros(spec.datatype, shape)


def _shape(config: ModelConfig, rows: int, dims: Sequence[int]) -> tuple[int, ...]:
    return (rows, *dims) if config.max_batch_size else tuple(dims)


def _zeros(datatype: str, shape: Sequence[int]) -> Array:
    if datatype == "BYTES":
        empty = np.empty(math.prod(shape), object)
        empty[:] = b""
        return empty.reshape(shape)
    return np.zeros(shape, NUMPY_TYPES[datatype])


def _random(datatype: str, shape: Sequence[int]) -> Array:
    source = np.random.default_rng(_SEED)
    if datatype == "BYTES":
        words = np.empty(math.prod(shape), object)
        words[:] = [b"%08x" % n for n in source.integers(0, 2**32, len(words))]
        return words.reshape(shape)
    return source.random(shape).astype(NUMPY_TYPES[datatype])
