"""Whether one request fits its model, checked alone before it meets its batch-mates. Pure; decodes no payload twice.

The gateway checks the same things; a worker trusts no message, because an unfit request in a micro-batch would hurt
the others in it.

Invariants: what passes here can be viewed as arrays without an error (tests/unit/test_intake_checks.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from contract.errors import HeadraceError, InvalidInput
from contract.messages import Layout, RequestHead, TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import DATATYPES, NUMPY_TYPES, byte_size, num_elements
from contract.text import TEXT_INPUT, has_text, text_specs

MAX_CACHED_LAYOUTS: Final = 1_024
_LENGTH = struct.Struct("<I")


class Column(NamedTuple):
    """One tensor of a request without BYTES."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CheckedLayout:
    """What a layout means for a model: `error`, or rows and the bytes of each tensor."""

    layout: Layout
    rows: int = 0
    sizes: tuple[int, ...] = ()
    """Bytes per tensor; -1 for BYTES, whose size the request's head says."""
    num_bytes: int = -1
    """Bytes of a whole request, or -1 where a BYTES tensor is in it."""
    error: HeadraceError | None = None
    columns: tuple[Column, ...] = ()
    """Where each tensor lies in a request's bytes; empty where a BYTES tensor is in it."""


class LayoutChecks:
    """Checks layouts of one model's requests and remembers the verdicts."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._specs = {spec.name: spec for spec in config.inputs}
        self._needed = frozenset(spec.name for spec in config.inputs if not spec.is_optional)
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self._known: dict[Layout, CheckedLayout] = {}

    def check(self, layout: Layout) -> CheckedLayout:
        """The verdict on `layout`; never raises for what a caller sent."""
        known = self._known.get(layout)
        if known is not None:
            return known
        try:
            checked = self._judge(layout)
        except HeadraceError as e:
            checked = CheckedLayout(layout, error=e)
        if len(self._known) >= MAX_CACHED_LAYOUTS:
            del self._known[next(iter(self._known))]
        self._known[layout] = checked
        return checked

    def check_outputs(self, outputs: Sequence[str], classifications: Sequence[int] = ()) -> None:
        """Raises InvalidInput naming a wanted output that the model does not have, or numbers that fit none."""
        if classifications and (len(classifications) != len(outputs) or min(classifications) < 0):
            raise InvalidInput(f"classifications {list(classifications)} for outputs {list(outputs)}")
        for name in outputs:
            if name not in self._outputs:
                raise InvalidInput(f"output {name!r}: model {self._config.name!r} has {sorted(self._outputs)}")

    def _judge(self, layout: Layout) -> CheckedLayout:
        names = [t.name for t in layout.tensors]
        if len(set(names)) != len(names):
            raise InvalidInput(f"inputs {names}: one is given twice")
        specs, needed = self._specs, self._needed
        if has_text(self._config, layout.tensors):
            text = next(t for t in layout.tensors if t.name == TEXT_INPUT)
            specs = {spec.name: spec for spec in text_specs(self._config, len(text.shape))}
            needed = frozenset(spec.name for spec in specs.values() if not spec.is_optional)
        missing = needed.difference(names)
        if missing:
            raise InvalidInput(f"inputs {sorted(missing)} of model {self._config.name!r} are missing")
        rows = {self._check_tensor(t, specs) for t in layout.tensors}
        if len(rows) > 1:
            raise InvalidInput(f"inputs have unlike numbers of rows: {sorted(rows)}")
        sizes = tuple(-1 if size is None else size for size in (byte_size(t.datatype, t.shape) for t in layout.tensors))
        has_bytes = -1 in sizes
        columns = () if has_bytes else _columns(layout, sizes)
        return CheckedLayout(layout, rows.pop() if rows else 1, sizes, -1 if has_bytes else sum(sizes), columns=columns)

    def _check_tensor(self, tensor: TensorHead, specs: Mapping[str, TensorSpec]) -> int:
        """Rows of the tensor, 1 without batching."""
        spec = specs.get(tensor.name)
        if spec is None:
            raise InvalidInput(f"input {tensor.name!r}: model {self._config.name!r} has {sorted(specs)}")
        if tensor.datatype != spec.datatype or tensor.datatype not in DATATYPES:
            raise InvalidInput(f"input {tensor.name!r}: datatype {tensor.datatype}, the model wants {spec.datatype}")
        shape = tensor.shape
        limit = self._config.max_batch_size
        if limit == 0:
            _check_dims(spec, shape, shape)
            return 1
        if not shape or not 1 <= shape[0] <= limit:
            raise InvalidInput(f"input {tensor.name!r}: shape {list(shape)}, the first size must be 1 to {limit}")
        _check_dims(spec, shape, shape[1:])
        return shape[0]


def _columns(layout: Layout, sizes: Sequence[int]) -> tuple[Column, ...]:
    ends = list(accumulate(sizes))
    return tuple(
        Column(t.name, NUMPY_TYPES[t.datatype], t.shape, end - size, end)
        for t, size, end in zip(layout.tensors, sizes, ends, strict=True)
    )


def slice_request(checked: CheckedLayout, head: RequestHead, body: memoryview) -> list[memoryview]:
    """The request's tensors as views of `body`, which holds exactly this request.

    Raises:
        InvalidInput: the bytes don't fit shapes, sizes or BYTES lengths; names the input and both values.
    """
    if checked.error is not None:
        raise checked.error
    if head.rows != checked.rows:
        raise InvalidInput(f"the request says {head.rows} rows, its tensors have {checked.rows}")
    if head.sizes and len(head.sizes) != len(checked.sizes):
        raise InvalidInput(f"{len(head.sizes)} sizes for {len(checked.sizes)} tensors")
    if checked.num_bytes < 0 and not head.sizes:
        raise InvalidInput("a request with BYTES inputs must say their sizes")
    views: list[memoryview] = []
    at = 0
    for i, (tensor, size) in enumerate(zip(checked.layout.tensors, checked.sizes, strict=True)):
        said = head.sizes[i] if head.sizes else size
        if size not in (-1, said) or said < 0:
            raise InvalidInput(
                f"input {tensor.name!r}: {said} bytes, {tensor.datatype} of shape {list(tensor.shape)} has {size}"
            )
        view = body[at : at + said]
        if len(view) != said:
            raise InvalidInput(f"input {tensor.name!r}: {said} bytes are announced, {len(view)} are there")
        if size == -1:
            check_elements(tensor, view)
        views.append(view)
        at += said
    if at != len(body):
        raise InvalidInput(f"{len(body) - at} bytes are left behind the last tensor")
    return views


def request_bytes(checked: CheckedLayout, head: RequestHead) -> int:
    """Bytes the request takes in its message's body; 0 for one that travels by reference.

    Raises:
        InvalidInput: nobody can say, so neither it nor what follows it in the body can be read.
    """
    if head.blob is not None:
        return 0
    if head.sizes:
        if min(head.sizes) < 0:
            raise InvalidInput(f"sizes {list(head.sizes)} hold a negative one")
        return sum(head.sizes)
    total = 0
    for tensor in checked.layout.tensors:
        size = byte_size(tensor.datatype, tensor.shape)
        if size is None or size < 0:
            raise InvalidInput(f"input {tensor.name!r}: {tensor.datatype} of shape {list(tensor.shape)} without a size")
        total += size
    return total


def check_elements(tensor: TensorHead, data: memoryview) -> None:
    """Raises InvalidInput if the 4-byte lengths of a BYTES tensor don't add up; names the input and both values."""
    at, end, found = 0, len(data), 0
    wanted = num_elements(tensor.shape)
    while at < end:
        if at + 4 > end:
            raise InvalidInput(f"input {tensor.name!r}: {end - at} bytes left where a 4-byte element length belongs")
        (size,) = _LENGTH.unpack_from(data, at)
        at += 4 + size
        if at > end:
            raise InvalidInput(f"input {tensor.name!r}: element {found} says {size} bytes, {end - at + size} are left")
        found += 1
    if found != wanted:
        raise InvalidInput(f"input {tensor.name!r}: {found} BYTES elements, its shape wants {wanted}")


def _check_dims(spec: TensorSpec, shape: Sequence[int], dims: Sequence[int]) -> None:
    fits = len(dims) == len(spec.dims) and all(
        have >= 0 and want in (-1, have) for have, want in zip(dims, spec.dims, strict=True)
    )
    if not fits:
        raise InvalidInput(f"input {spec.name!r}: shape {list(shape)}, the model wants {list(spec.dims)} per row")
