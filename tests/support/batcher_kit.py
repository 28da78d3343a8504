"""Configs and work items for the worker's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.messages import Layout, TensorHead
from contract.model_config import DynamicBatching, ModelConfig, QueuePolicy, TensorSpec
from contract.tensors import from_array
from workers.items import WorkItem

FAR_S = 1e6
PLAIN = DynamicBatching()


def make_config(max_batch_size: int = 8, batching: DynamicBatching | None = PLAIN, **fields: Any) -> ModelConfig:
    """Two FP32 numbers per row, in and out."""
    fields.setdefault("inputs", (TensorSpec("IN", "FP32", (2,)),))
    fields.setdefault("outputs", (TensorSpec("OUT", "FP32", (2,)),))
    return ModelConfig("m", "python", max_batch_size=max_batch_size, dynamic_batching=batching, **fields)


def make_ragged_config(max_batch_size: int = 32, **fields: Any) -> ModelConfig:
    """Token ids of any length in, the same out."""
    return make_config(
        max_batch_size,
        inputs=(TensorSpec("ids", "INT64", (-1,), is_ragged=True),),
        outputs=(TensorSpec("ids", "INT64", (-1,)),),
        **fields,
    )


def queue(**fields: Any) -> DynamicBatching:
    """Dynamic batching with a default queue policy."""
    return DynamicBatching(default_queue_policy=QueuePolicy(**fields))


def make_item(number: int, arrays: dict[str, np.ndarray] | None = None, *, rows: int = 1, **fields: Any) -> WorkItem:
    """A request of `rows` rows that are all `number`, unless `arrays` says otherwise."""
    arrays = arrays or {"IN": np.full((rows, 2), number, np.float32)}
    tensors = [from_array(name, array) for name, array in arrays.items()]
    enqueued_s = fields.pop("enqueued_s", 0.0)
    return WorkItem(
        key=("gw", number),
        model="m",
        rows=rows,
        layout=Layout(tuple(head for head, _ in tensors)),
        data=[memoryview(data) for _, data in tensors],
        enqueued_s=enqueued_s,
        admitted_s=fields.pop("admitted_s", enqueued_s),
        deadline_s=fields.pop("deadline_s", FAR_S),
        **fields,
    )


def make_text(number: int, length: int, **fields: Any) -> WorkItem:
    """One row of `length` token ids."""
    return make_item(number, {"ids": np.arange(1, length + 1, dtype=np.int64).reshape(1, length)}, **fields)


def bare_text(number: int, length: int, rows: int = 1, **fields: Any) -> WorkItem:
    """Like make_text, without data: for tests that only queue."""
    head = TensorHead("ids", "INT64", (rows, length))
    return WorkItem(
        ("gw", number), "m", rows, Layout((head,)), [b""], deadline_s=FAR_S, enqueued_s=0.0, admitted_s=0.0, **fields
    )


def ids(items: list[WorkItem]) -> list[int]:
    """Numbers of the items."""
    return [item.key[1] for item in items]
