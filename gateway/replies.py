"""Reply messages to answers: which bytes of the body belong to which result. Pure; knows no open requests.

The body holds the tensors of each result in order; errors and results that travel by reference have none in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from contract.envelope import BadEnvelope
from contract.errors import HeadraceError, from_wire
from contract.messages import Layout, ReplyMessage, ResultHead
from contract.tensors import byte_size
from gateway.core import Answer

Sizes = tuple[tuple[int, ...] | None, int]
"""Bytes of each tensor and their sum; None where only the result itself can say (BYTES)."""


def layout_sizes(layout: Layout) -> Sizes:
    """What follows from the shapes."""
    sizes = [byte_size(head.datatype, head.shape) for head in layout.tensors]
    known = tuple([size for size in sizes if size is not None])
    return (known, sum(known)) if len(known) == len(sizes) else (None, 0)


def result_sizes(head: ResultHead, layouts: Sequence[Sizes]) -> tuple[tuple[int, ...], int]:
    """Bytes of each of the result's tensors and their sum.

    Raises:
        BadEnvelope: a layout that is not there, or BYTES without sizes.
    """
    if head.code:
        return (), 0
    if not 0 <= head.layout < len(layouts):
        raise BadEnvelope(f"result {head.id} names layout {head.layout} of {len(layouts)}")
    if head.sizes:
        return head.sizes, sum(head.sizes)
    sizes, total = layouts[head.layout]
    if sizes is None:
        raise BadEnvelope(f"result {head.id} has a BYTES tensor and no sizes")
    return sizes, total


def slices(body: memoryview, at: int, sizes: Sequence[int]) -> list[memoryview]:
    """A result's tensors as views of `body` from `at`.

    Raises:
        BadEnvelope: the body ends before they do.
    """
    data = []
    for size in sizes:
        end = at + size
        data.append(body[at:end])
        at = end
    if at > len(body):
        raise BadEnvelope(f"a result's tensors end at byte {at} of a body of {len(body)}")
    return data


def make_outcome(message: ReplyMessage, head: ResultHead, data: list[memoryview]) -> Answer | HeadraceError:
    """The result as the doors get it.

    Raises:
        BadEnvelope: its tensors and its layout disagree.
    """
    if head.code:
        return from_wire(head.code, head.message)
    tensors = message.layouts[head.layout].tensors
    if len(tensors) != len(data):
        raise BadEnvelope(f"result {head.id}: {len(data)} sizes for {len(tensors)} tensors")
    return Answer(
        message.model,
        message.version,
        tensors,
        data,
        head.parameters,
        head.queue_us,
        head.compute_us,
        head.batch_rows,
    )
