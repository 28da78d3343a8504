"""Requests to the arrays of one execution, and its outputs back to each request's bytes. Pure; runs no model.

Rows of ragged inputs are padded with zeros to the longest of their micro-batch, and what a model answers for the
padding is cut off again: a dimension of an output that the config leaves open (-1) and that is as long as the padded
input. Arrays have the config's `dims`; a backend that wants `reshape` does that itself. Outputs of
fixed-size datatypes are views of one buffer, not copies per request.

Invariants: split(stack(x)) == x for an identity model, any shapes, datatypes and rows (tests/property/test_collate.py).

Source: KServe OIP v2, "Tensor Data"; Triton `allow_ragged_batch` and `optional` in model_config.proto.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from contract.errors import ModelFailed
from contract.messages import Layout, TensorHead
from contract.model_config import ModelConfig
from contract.tensors import NUMPY_TYPES, Array, datatype_of, from_array, to_array
from workers.items import Buffer, WorkItem


def stack(items: Sequence[WorkItem], config: ModelConfig) -> dict[str, Array]:
    """Join the requests' inputs along the batch axis; optional inputs that the requests lack are left out.

    Shapes:
        in:  per request, input i is [rows_r, *dims_i]; alike in all requests, but for the dims of ragged inputs
        out: input i is [sum(rows_r), *dims_i], C-contiguous, in request order

    Raises:
        InvalidInput: bytes and shape of a request disagree; names the input and both values.
    """
    specs = {spec.name: spec for spec in config.inputs}
    rows = sum([item.rows for item in items])
    joined = {}
    for i, head in enumerate(items[0].layout.tensors):
        spec = specs.get(head.name)
        is_padded = spec is not None and spec.is_ragged and _is_uneven(items, i)
        joined[head.name] = _pad(items, i, rows) if is_padded else _join(items, i, rows)
    return joined


def split(
    outputs: Mapping[str, Array], items: Sequence[WorkItem], config: ModelConfig
) -> list[tuple[Layout, list[Buffer]]]:
    """Per request, in order, its rows of each wanted output: layout and raw bytes.

    Raises:
        ModelFailed: a wanted output is missing, or has another datatype, row count or shape than config and requests
            say; names the output and both values.
    """
    rows = sum([item.rows for item in items])
    columns = [_column(name, outputs, rows, config) for name in _wanted(outputs, items[0], config)]
    sizes = _own_sizes(items, config)
    if sizes:
        cuts = [_cuts(column, sizes[0]) for column in columns]
        if any(cuts):
            return _cut_out(columns, cuts, items, sizes)
    layouts = {n: Layout(tuple([column.head(n) for column in columns])) for n in {item.rows for item in items}}
    parts = [_slices(column, items, rows) for column in columns]
    data = [list(own) for own in zip(*parts, strict=True)] if parts else [[] for _ in items]
    return [(layouts[item.rows], own) for item, own in zip(items, data, strict=True)]


# -------- inputs
def _join(items: Sequence[WorkItem], i: int, rows: int) -> Array:
    """Input `i` of requests whose inner shapes are equal. Without batching there is one request."""
    head = items[0].layout.tensors[i]
    if len(items) == 1:
        array = to_array(head, items[0].data[i])
        return array if array.flags.aligned else array.copy()
    shape = (rows, *head.shape[1:])
    dtype = NUMPY_TYPES.get(head.datatype)
    if dtype is None:
        return np.concatenate([to_array(item.layout.tensors[i], item.data[i]) for item in items])
    row_bytes = dtype.itemsize * math.prod(head.shape[1:])
    for item in items:
        if len(item.data[i]) != row_bytes * item.rows:
            to_array(item.layout.tensors[i], item.data[i])  # raises, naming both values
    return np.frombuffer(b"".join([item.data[i] for item in items]), dtype).reshape(shape)


def _is_uneven(items: Sequence[WorkItem], i: int) -> bool:
    inner = items[0].layout.tensors[i].shape[1:]
    return any(item.layout.tensors[i].shape[1:] != inner for item in items)


def _pad(items: Sequence[WorkItem], i: int, rows: int) -> Array:
    """Input `i`, zeros (for BYTES: empty elements) behind each request's own."""
    inner = tuple(map(max, *(item.layout.tensors[i].shape[1:] for item in items)))
    dtype = NUMPY_TYPES.get(items[0].layout.tensors[i].datatype)
    joined: Array = np.full((rows, *inner), b"", object) if dtype is None else np.zeros((rows, *inner), dtype)
    at = 0
    for item in items:
        own = to_array(item.layout.tensors[i], item.data[i])
        joined[(slice(at, at + item.rows), *map(slice, own.shape[1:]))] = own
        at += item.rows
    return joined


# -------- outputs
@dataclass(frozen=True, slots=True)
class _Column:
    """One output of the whole micro-batch, checked and in the shape its config promises."""

    name: str
    datatype: str
    array: Array
    dims: tuple[int, ...]
    """What the config says, without the batch dimension; empty where it says nothing."""
    is_batched: bool

    def head(self, rows: int) -> TensorHead:
        shape = tuple(map(int, self.array.shape))
        return TensorHead(self.name, self.datatype, (rows, *shape[1:]) if self.is_batched else shape)


def _wanted(outputs: Mapping[str, Array], item: WorkItem, config: ModelConfig) -> Sequence[str]:
    """Names the request asked for, or those of the config that the model answered."""
    if item.outputs:
        return item.outputs
    if not config.outputs:
        return tuple(outputs)
    names = [spec.name for spec in config.outputs]
    answered = [name for name in names if name in outputs]
    if not answered:
        raise ModelFailed(f"model {config.name!r} answered outputs {sorted(outputs)}, its config has {names}")
    return answered


def _column(name: str, outputs: Mapping[str, Array], rows: int, config: ModelConfig) -> _Column:
    array = outputs.get(name)
    if array is None:
        raise ModelFailed(f"model {config.name!r} answered no output {name!r}, but {sorted(outputs)}")
    is_batched = config.max_batch_size > 0
    if is_batched and (array.ndim == 0 or array.shape[0] != rows):
        raise ModelFailed(f"output {name!r} of model {config.name!r} has shape {list(array.shape)} for {rows} rows")
    spec = next((spec for spec in config.outputs if spec.name == name), None)
    datatype = spec.datatype if spec else datatype_of(array.dtype)
    if datatype is None or not _has_datatype(array, datatype):
        wanted = datatype or "an OIP datatype"
        raise ModelFailed(f"output {name!r} of model {config.name!r} is {array.dtype}, it must be {wanted}")
    if spec is None:
        return _Column(name, datatype, array, (), is_batched)
    given = array.shape[1:] if is_batched else array.shape
    if len(given) != len(spec.dims) or any(dim not in (-1, n) for dim, n in zip(spec.dims, given, strict=True)):
        raise ModelFailed(f"output {name!r} of model {config.name!r} has dims {list(given)}, config {list(spec.dims)}")
    return _Column(name, datatype, array, spec.dims, is_batched)


def _has_datatype(array: Array, datatype: str) -> bool:
    return array.dtype.kind in "OSU" if datatype == "BYTES" else array.dtype == NUMPY_TYPES[datatype]


def _slices(column: _Column, items: Sequence[WorkItem], rows: int) -> list[Buffer]:
    """Each request's rows as raw bytes."""
    if column.datatype == "BYTES":
        return [_raw(column, part) for part in _parts(column, items)]
    flat = np.ascontiguousarray(column.array).reshape(-1).view(np.uint8).data
    if len(items) == 1:
        return [flat]
    row_bytes = len(flat) // max(1, rows)
    ends = list(accumulate([item.rows * row_bytes for item in items], initial=0))
    return [flat[start:end] for start, end in pairwise(ends)]


def _parts(column: _Column, items: Sequence[WorkItem]) -> list[Array]:
    if not column.is_batched:
        return [column.array]
    ends = accumulate([item.rows for item in items], initial=0)
    return [column.array[start:end] for start, end in pairwise(ends)]


def _raw(column: _Column, part: Array) -> bytes:
    return from_array(column.name, part, column.datatype)[1]


# -------- padding, off again
Axis = tuple[int, int]
"""(axis without batch, padded size) of a ragged input."""


def _own_sizes(items: Sequence[WorkItem], config: ModelConfig) -> list[dict[Axis, int]]:
    """Per request the size that each padded axis had in it; empty where nothing was padded."""
    ragged = {spec.name for spec in config.inputs if spec.is_ragged}
    if len(items) == 1 or not ragged:
        return []
    sizes: list[dict[Axis, int]] = [{} for _ in items]
    for i, head in enumerate(items[0].layout.tensors):
        if head.name not in ragged or not _is_uneven(items, i):
            continue
        inner = tuple(map(max, *(item.layout.tensors[i].shape[1:] for item in items)))
        for item, own in zip(items, sizes, strict=True):
            for axis, (padded, size) in enumerate(zip(inner, item.layout.tensors[i].shape[1:], strict=True)):
                own[axis, padded] = max(size, own.get((axis, padded), 0))
    return sizes if sizes[0] else []


def _cuts(column: _Column, padded: Collection[Axis]) -> dict[int, Axis]:
    """Axes of an output that are as long as a padded input: preferably the same axis of it, else any."""
    cuts = {}
    for axis, dim in enumerate(column.dims):
        size = column.array.shape[axis + 1]
        alike = [place for place in padded if place[1] == size]
        if dim == -1 and alike:
            cuts[axis] = (axis, size) if (axis, size) in padded else min(alike)
    return cuts


def _cut_out(
    columns: Sequence[_Column],
    cuts: Sequence[dict[int, Axis]],
    items: Sequence[WorkItem],
    sizes: Sequence[dict[Axis, int]],
) -> list[tuple[Layout, list[Buffer]]]:
    parts = [_parts(column, items) for column in columns]
    results: list[tuple[Layout, list[Buffer]]] = []
    for n, own in enumerate(sizes):
        tensors = []
        for column, cut, part in zip(columns, cuts, parts, strict=True):
            ends = [own[cut[axis]] if axis in cut else None for axis in range(part[n].ndim - 1)]
            tensors.append(from_array(column.name, part[n][(slice(None), *map(slice, ends))], column.datatype))
        results.append((Layout(tuple([head for head, _ in tensors])), [data for _, data in tensors]))
    return results
