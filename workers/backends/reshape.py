"""`reshape` of a config: between the shape that callers see (dims) and the one that the model sees. Pure."""

from __future__ import annotations

from contract.errors import ModelFailed
from contract.model_config import TensorSpec
from contract.tensors import Array


def to_model(spec: TensorSpec, array: Array, *, is_batched: bool) -> Array:
    """Shapes: in [rows, *dims], out [rows, *reshape]; without rows where the model has no batch dimension."""
    return array if spec.reshape is None else _reshaped(spec, array, spec.reshape, is_batched=is_batched)


def to_caller(spec: TensorSpec, array: Array, *, is_batched: bool) -> Array:
    """Shapes: in [rows, *reshape], out [rows, *dims]; without rows where the model has no batch dimension."""
    return array if spec.reshape is None else _reshaped(spec, array, spec.dims, is_batched=is_batched)


def _reshaped(spec: TensorSpec, array: Array, dims: tuple[int, ...], *, is_batched: bool) -> Array:
    """Free sizes (-1) keep their order: the first of `dims` takes the first free size of the array's own shape."""
    own = spec.reshape if dims is spec.dims else spec.dims
    assert own is not None
    sizes = array.shape[1:] if is_batched else array.shape
    if len(sizes) != len(own):
        raise ModelFailed(f"tensor {spec.name!r} has shape {list(array.shape)}, its config has {list(own)} per row")
    free = iter([size for size, dim in zip(sizes, own, strict=True) if dim == -1])
    wanted = tuple(next(free) if dim == -1 else dim for dim in dims)
    try:
        return array.reshape((array.shape[0], *wanted) if is_batched else wanted)
    except ValueError:
        raise ModelFailed(
            f"tensor {spec.name!r} of shape {list(array.shape)} can't be reshaped to {list(wanted)} per row"
        ) from None
