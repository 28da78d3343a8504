"""Requests of one message that look alike, taken through a small model as one: no item, array or slice per request.

    RequestMessage -> Block -> join_inputs -> model -> join_outputs -> one body for one ReplyMessage

Only for models that run in the event loop and whose requests need no queue. Whatever is not plain, or fails, takes the
ordinary way, where each request is an item of its own. Pure.

Source: docs/performance.md, "Where the time goes": per-request work in the worker is what a micro-second model costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contract.messages import Layout, RequestHead, RequestMessage, TensorHead
from contract.model_config import ModelConfig
from contract.tensors import NUMPY_TYPES, Array
from workers.checks import CheckedLayout
from workers.inhand import InHand


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
    checked = blocks[0].checked
    body = blocks[0].body if len(blocks) == 1 else b"".join([b.body for b in blocks])
    num_requests = sum([len(b.heads) for b in blocks])
    raw = np.frombuffer(body, np.uint8).reshape(num_requests, checked.num_bytes)  # [requests, bytes]
    inputs: dict[str, Array] = {}
    at = 0
    for tensor, size in zip(checked.layout.tensors, checked.sizes, strict=True):
        column = raw[:, at : at + size]
        dtype = NUMPY_TYPES[tensor.datatype]
        rows = num_requests * tensor.shape[0]
        # A copy is aligned, whatever the envelope's header length did to the body.
        inputs[tensor.name] = np.array(column, order="C").view(dtype).reshape(rows, *tensor.shape[1:])
        at += size
    return inputs


class UnfitOutput(Exception):
    """The model answered something that only the ordinary way can explain to the caller."""


def join_outputs(
    config: ModelConfig, outputs: Mapping[str, Array], num_requests: int, rows: int
) -> tuple[tuple[TensorHead, ...], bytes]:
    """Heads of one request's result, and all results' bytes behind one another, outputs in the config's order.

    Raises:
        UnfitOutput: an output is missing, or its type or shape is not what the config says.
    """
    heads: list[TensorHead] = []
    columns: list[Array] = []
    for spec in config.outputs:
        array = outputs.get(spec.name)
        if (
            array is None
            or array.dtype != NUMPY_TYPES[spec.datatype]
            or array.ndim != len(spec.dims) + 1
            or array.shape[0] != num_requests * rows
        ):
            raise UnfitOutput(spec.name)
        heads.append(TensorHead(spec.name, spec.datatype, (rows, *array.shape[1:])))
        columns.append(np.ascontiguousarray(array).reshape(num_requests, -1).view(np.uint8))
    joined = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
    return tuple(heads), joined.tobytes()


def result_layout(known: dict[tuple[TensorHead, ...], Layout], heads: tuple[TensorHead, ...]) -> Layout:
    """One Layout object per kind of result, so that a reply shares it."""
    layout = known.get(heads)
    if layout is None:
        if len(known) >= 256:
            known.clear()
        layout = known[heads] = Layout(heads)
    return layout
