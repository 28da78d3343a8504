"""An ONNX graph's inputs and outputs against a config: checks one, or completes it. Pure; runs nothing.

Source: Triton model_configuration.md, "Auto-Generated Model Configuration".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contract.model_config import ModelConfig, TensorSpec
from workers.backends.base import LoadFailed
from workers.repository.pbtxt import TritonConfig

DEFAULT_MAX_BATCH_SIZE: Final = 4
"""Triton's `default-max-batch-size` for a model whose config names none."""

_DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of a graph; -1 in `shape` is any size."""

    name: str
    type: str
    """As ONNX Runtime writes it: `tensor(float)`, `seq(map(int64,tensor(float)))`."""
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str | None:
        """The OIP datatype, or None for what no tensor can carry."""
        return _DATATYPES.get(self.type)


def graph_tensors(nodes: Iterable[Any]) -> tuple[GraphTensor, ...]:
    """What `InferenceSession.get_inputs()` or `get_outputs()` says."""
    return tuple(GraphTensor(n.name, n.type, tuple(d if isinstance(d, int) else -1 for d in n.shape)) for n in nodes)


def check_graph(config: ModelConfig, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> None:
    """Raises LoadFailed, with both values, where the config and the graph disagree."""
    _check_side("input", config.inputs, inputs, config.max_batch_size)
    _check_side("output", config.outputs, outputs, config.max_batch_size)
    given = {spec.name for spec in config.inputs}
    if missing := [tensor.name for tensor in inputs if tensor.name not in given]:
        raise LoadFailed(f"the graph needs input {missing[0]!r}, which the config does not have")
    if optional := [spec.name for spec in config.inputs if spec.is_optional]:
        raise LoadFailed(f"input {optional[0]!r} is optional in the config, but the graph always needs it")


def complete(triton: TritonConfig, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> TritonConfig:
    """`triton` with the sides it leaves out; a graph whose first sizes are all free gets a batch dimension.

    Raises:
        LoadFailed: the graph has something that no tensor can carry.
    """
    done = dict(triton)
    is_batched = bool(triton.get("max_batch_size")) or _looks_batched(triton, inputs, outputs)
    if is_batched and not triton.get("max_batch_size"):
        done["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
        done.setdefault("dynamic_batching", {})
    for side, tensors in (("input", inputs), ("output", outputs)):
        if not triton.get(side):
            done[side] = [_described(side, tensor, is_batched=is_batched) for tensor in tensors]
    return done


def _looks_batched(triton: TritonConfig, inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor]) -> bool:
    """A side that the config does give, with max_batch_size 0, shows that the first size is no batch dimension."""
    if triton.get("input") or triton.get("output"):
        return False
    return all(tensor.shape[:1] == (-1,) for tensor in (*inputs, *outputs))


def _described(side: str, tensor: GraphTensor, *, is_batched: bool) -> dict[str, Any]:
    dims = list(tensor.shape[1:] if is_batched else tensor.shape)
    described = {"name": tensor.name, "data_type": _triton_type(side, tensor), "dims": dims or [1]}
    return described if dims else {**described, "reshape": {"shape": []}}


def _triton_type(side: str, tensor: GraphTensor) -> str:
    if tensor.datatype is None:
        raise LoadFailed(_not_a_tensor(side, tensor))
    return "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"


def _not_a_tensor(side: str, tensor: GraphTensor) -> str:
    hint = "; convert scikit-learn models with zipmap off" if tensor.type.startswith(("seq(", "map(")) else ""
    return f"{side} {tensor.name!r} is {tensor.type} in the graph, which is no tensor that OIP can carry{hint}"


def _check_side(side: str, specs: Sequence[TensorSpec], tensors: Sequence[GraphTensor], max_batch_size: int) -> None:
    known = {tensor.name: tensor for tensor in tensors}
    for spec in specs:
        tensor = known.get(spec.name)
        if tensor is None:
            raise LoadFailed(f"the graph has no {side} {spec.name!r}, it has {', '.join(sorted(known)) or 'none'}")
        if tensor.datatype is None:
            raise LoadFailed(_not_a_tensor(side, tensor))
        if tensor.datatype != spec.datatype:
            raise LoadFailed(f"{side} {spec.name!r} is {spec.datatype} in the config, {tensor.datatype} in the graph")
        _check_shape(side, spec, tensor, max_batch_size)


def _check_shape(side: str, spec: TensorSpec, tensor: GraphTensor, max_batch_size: int) -> None:
    """A graph without shape information and a scalar look alike; neither can be checked."""
    if not tensor.shape:
        return
    dims = spec.dims if spec.reshape is None else spec.reshape
    wanted = (-1, *dims) if max_batch_size else dims
    if max_batch_size and tensor.shape[0] not in (-1, max_batch_size):
        raise LoadFailed(
            f"max_batch_size = {max_batch_size}, but the first size of {side} {spec.name!r} is {tensor.shape[0]} in the"
            f" graph; export it with a free first size or set max_batch_size to 0"
        )
    if max_batch_size > 1 and tensor.shape[0] == max_batch_size:
        raise LoadFailed(
            f"max_batch_size = {max_batch_size}, but the graph takes exactly that many rows in {side} {spec.name!r};"
            f" export it with a free first size"
        )
    fits = len(wanted) == len(tensor.shape) and all(
        a == b or -1 in (a, b) for a, b in zip(wanted, tensor.shape, strict=False)
    )
    if not fits:
        batch = " (with the batch dimension)" if max_batch_size else ""
        raise LoadFailed(
            f"{side} {spec.name!r} has shape {list(wanted)}{batch} in the config, {list(tensor.shape)} in the graph"
        )
