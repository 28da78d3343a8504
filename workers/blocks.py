"""Requests of one message that look alike, taken through a small model as one: no item, array or slice per request.

    RequestMessage -> Block -> join_inputs -> model -> join_outputs -> one body for one ReplyMessage

Only for models that run in the event loop and whose requests need no queue. Whatever is not plain, or fails, takes the
ordinary way, where each request is an item of its own. Pure.

Source: docs/performance.md, "Where the time goes": per-request work in the worker is what a micro-second model costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from contract.messages import Layout, RequestHead, RequestMessage, TensorHead
from contract.model_config import ModelConfig
from contract.tensors import NUMPY_TYPES, Array
from workers.checks import CheckedLayout
from workers.inhand import InHand

MAX_RESULT_LAYOUTS: Final = 256

Shapes = tuple[tuple[int, ...], ...]
"""Of each output of one request, in the config's order."""


@dataclass(slots=True)
class Block:
    """All requests of one message: same layout, same rows, no wish of their own."""

    hand: InHand
    message: RequestMessage
    checked: CheckedLayout
    body: memoryview
    rows: int
    first_deadline_ms: int
    last_deadline_ms: int

    @property
    def heads(self) -> list[RequestHead]:
        """The requests."""
        return self.message.requests


def is_block_model(config: ModelConfig) -> bool:
    """Whether requests of this model may go as blocks: joined, fixed sizes, no queue rules, no reshape."""
    batching = config.dynamic_batching
    is_plain_queue = batching is not None and not (
        config.is_eager or batching.max_queue_delay_us or batching.priority_levels or batching.preferred_batch_size
    )
    tensors = (*config.inputs, *config.outputs)
    return (
        config.max_batch_size > 0
        and is_plain_queue
        and config.may_retry
        and all(t.reshape is None and not t.is_ragged and t.datatype in NUMPY_TYPES for t in tensors)
    )


def deadlines_ms(heads: Sequence[RequestHead], rows: int) -> tuple[int, int]:
    """The earliest and the latest deadline of requests that can go as one block; zeros if one of them is not plain."""
    first = last = heads[0].deadline_unix_ms
    for head in heads:
        if (
            head.layout
            or head.rows != rows
            or head.attempt
            or head.outputs
            or head.parameters
            or head.sizes
            or head.blob is not None
        ):
            return 0, 0
        deadline_ms = head.deadline_unix_ms
        if deadline_ms < first:
            first = deadline_ms
        elif deadline_ms > last:
            last = deadline_ms
    return first, last


def take_joinable(blocks: Sequence[Block], max_rows: int) -> int:
    """How many of the first blocks run as one: same layout, rows within `max_rows`; at least one."""
    layout, rows, num = blocks[0].checked.layout, 0, 0
    for block in blocks:
        if num and (rows + block.rows > max_rows or (block.checked.layout != layout)):
            break
        rows += block.rows
        num += 1
    return num


def join_inputs(blocks: Sequence[Block]) -> dict[str, Array]:
    """The blocks' inputs along the batch dimension.

    Shapes:
        in:  per request, input i is [rows, *dims_i], inputs behind one another
        out: input i is [sum(rows), *dims_i], C-contiguous
    """
    columns = blocks[0].checked.columns
    num_requests = sum([len(b.heads) for b in blocks])
    # Copies are aligned, whatever the envelope's header length did to the body, and the model's own to write to.
    if num_requests == 1:
        body = blocks[0].body
        return {c.name: np.ndarray(c.shape, c.dtype, bytearray(body[c.start : c.end])) for c in columns}
    joined = blocks[0].body if len(blocks) == 1 else b"".join([b.body for b in blocks])
    raw = np.frombuffer(joined, np.uint8).reshape(num_requests, -1)  # [requests, bytes]
    return {
        c.name: raw[:, c.start : c.end].copy().view(c.dtype).reshape(num_requests * c.shape[0], *c.shape[1:])
        for c in columns
    }


class UnfitOutput(Exception):
    """The model answered something that only the ordinary way can explain to the caller."""


def join_outputs(
    config: ModelConfig, outputs: Mapping[str, Array], num_requests: int, rows: int
) -> tuple[Shapes, bytes]:
    """Shapes of one request's result, and all results' bytes behind one another, outputs in the config's order.

    Raises:
        UnfitOutput: an output is missing, or its type or shape is not what the config says.
    """
    shapes: list[tuple[int, ...]] = []
    arrays: list[Array] = []
    for spec in config.outputs:
        array = outputs.get(spec.name)
        if array is None or array.dtype != NUMPY_TYPES[spec.datatype]:
            raise UnfitOutput(spec.name)
        shape = array.shape
        if len(shape) != len(spec.dims) + 1 or shape[0] != num_requests * rows:
            raise UnfitOutput(spec.name)
        shapes.append((rows, *shape[1:]))
        arrays.append(array)
    if num_requests == 1:
        return tuple(shapes), b"".join([array.tobytes() for array in arrays])
    columns = [np.ascontiguousarray(array).reshape(num_requests, -1).view(np.uint8) for array in arrays]
    joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    return tuple(shapes), joined.tobytes()


def result_layout(known: dict[Shapes, Layout], config: ModelConfig, shapes: Shapes) -> Layout:
    """One Layout object per kind of result, so that replies share it."""
    layout = known.get(shapes)
    if layout is None:
        if len(known) >= MAX_RESULT_LAYOUTS:
            known.clear()
        heads = [TensorHead(o.name, o.datatype, shape) for o, shape in zip(config.outputs, shapes, strict=True)]
        layout = known[shapes] = Layout(tuple(heads))
    return layout
