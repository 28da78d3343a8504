"""Outputs as their best classes: `value:index` or `value:index:label`, highest first. Pure; for who asks for it only.

A request's `outputs[].parameters.classification: k` replaces each row of that output by its k highest values, as BYTES.
Equal values stand in the order of their index, NaN stands last.

Source: Triton, extension_classification.md and common's TopkClassifications (`std::to_string` writes six decimals).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from contract.errors import InvalidInput
from contract.messages import Layout, TensorHead
from contract.tensors import NUMPY_TYPES, Array, encode_elements, to_array
from workers.items import Buffer

Labels = Mapping[str, Sequence[str]]
"""By output name; an index beyond them, or an empty label, has none."""

NO_LABELS: Final[Labels] = {}


def classify(
    layout: Layout, data: Sequence[Buffer], num_classes: Mapping[str, int], labels: Labels, *, is_batched: bool
) -> tuple[Layout, list[Buffer]]:
    """One request's answer with the outputs of `num_classes` replaced by their best classes.

    Shapes:
        in:  output i is [rows, *dims_i], or [*dims_i] without batching
        out: those of `num_classes` are BYTES [rows, min(k, elements of a row)], or [min(k, elements)]

    Raises:
        InvalidInput: an output's datatype has no order; names the output and the datatype.
    """
    heads: list[TensorHead] = []
    parts: list[Buffer] = []
    for head, part in zip(layout.tensors, data, strict=True):
        k = num_classes.get(head.name, 0)
        if not k:
            heads.append(head)
            parts.append(part)
            continue
        rows = head.shape[0] if is_batched else 1
        values = _values(head, part).reshape(rows, -1)  # [rows, classes]
        best = _best(values, k)  # [rows, min(k, classes)]
        texts = _texts(values, best, labels.get(head.name, ()))
        heads.append(TensorHead(head.name, "BYTES", best.shape if is_batched else best.shape[1:]))
        parts.append(encode_elements(texts))
    return Layout(tuple(heads)), parts


def _values(head: TensorHead, part: Buffer) -> Array:
    if head.datatype not in NUMPY_TYPES or head.datatype == "BOOL":
        raise InvalidInput(f"output {head.name!r}: classification needs numbers, the output is {head.datatype}")
    values = to_array(head, part)
    if head.datatype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _best(values: Array, k: int) -> Array:
    """Indexes of the k highest values of each row."""
    if values.dtype.kind == "f":
        return np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :k]
    # A negated unsigned integer, or the lowest signed one, would wrap: sort upwards and read backwards.
    backwards = np.argsort(values[:, ::-1], axis=1, kind="stable")[:, ::-1]
    best: Array = values.shape[1] - 1 - backwards[:, :k]
    return best


def _texts(values: Array, best: Array, labels: Sequence[str]) -> list[bytes]:
    found = np.take_along_axis(values, best, axis=1)
    pattern = "%f:%d" if values.dtype.kind == "f" else "%d:%d"
    texts = []
    for value, index in zip(found.ravel().tolist(), best.ravel().tolist(), strict=True):
        label = labels[index] if index < len(labels) else ""
        text = pattern % (value, index)
        texts.append((f"{text}:{label}" if label else text).encode())
    return texts
