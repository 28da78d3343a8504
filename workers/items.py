"""One decoded request in a worker, from intake to its single end. Data and the settle-once rule; decides nothing.

    intake: WorkItem(...) -> Batcher.offer -> take -> MicroBatch -> execute -> Outcome -> item.settle(outcome)

Every way out (answered, failed, refused, expired, cancelled) ends in exactly one `settle`, called in the event loop.
The batcher and the executor return outcomes as data and never settle; the worker does.

Invariants: `on_settled` is called at most once per item (tests/unit/test_instance.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from contract.errors import HeadraceError
from contract.messages import Layout, ParameterValue

Key = tuple[str, int]
"""(gateway, id): what a cancel names. A redelivered or re-published request has the key of its first copy."""

Buffer = bytes | memoryview


class Answer(msgspec.Struct, frozen=True, eq=False):
    """The tensors of one answered request. Items of a micro-batch whose results look alike share one `layout`."""

    layout: Layout
    data: Sequence[Buffer]
    """Raw bytes per tensor of `layout`, often views of one buffer of the whole micro-batch."""
    batch_rows: int
    """Rows of the execution it ran in."""
    queue_us: int = 0
    """From admission at the gateway to the start of the execution."""
    compute_us: int = 0
    """The execution: input, inference and output together."""
    parameters: Mapping[str, ParameterValue] = {}


Outcome = Answer | HeadraceError


class WorkItem(msgspec.Struct, eq=False):
    """A request that waits for, or is in, a micro-batch. Times are seconds on this process's monotonic clock."""

    key: Key
    model: str
    rows: int
    """Rows of its batch dimension; 1 where the model has none. Limits count these."""
    layout: Layout
    """Its input tensors, batch dimension included."""
    data: Sequence[Buffer]
    """Raw bytes of each tensor of `layout`; views of the message are fine."""
    deadline_s: float
    enqueued_s: float
    """When this worker got it: `max_queue_delay` counts from here."""
    admitted_s: float
    """When the gateway admitted it: queue time and the queue time-out count from here."""
    version: str = ""
    """Pinned version, or empty for the worker's choice. Unlike versions are never joined."""
    priority: int = 0
    """1 is highest, 0 the model's default."""
    queue_timeout_us: int = 0
    """The request's own `timeout` parameter; 0 has none. Counts only where the policy allows the override."""
    must_run_alone: bool = False
    """A redelivered request: it shares no execution with others."""
    outputs: tuple[str, ...] = ()
    """Wanted outputs; empty wants all."""
    classifications: tuple[int, ...] = ()
    """Beside `outputs`: how many of its best classes are wanted instead of each row, 0 for the row itself."""
    request_id: str = ""
    """The gateway's, which its caller sees as `x-request-id`: logs join on it."""
    caller_id: str = ""
    """The `id` of the request's body, the one a model sees; empty where it has none."""
    traceparent: str = ""
    parameters: Mapping[str, ParameterValue] = {}
    delivery: object = None
    """What the worker acks when it is settled; nobody else looks at it."""
    on_settled: Callable[[WorkItem, Outcome], None] | None = None
    length: int = 0
    """Padded elements of one row of its longest ragged input; 0 without ragged inputs. Set by the batcher."""
    batch_key: object = None
    """Items with equal keys may be joined. Set by the batcher."""
    rank: int = 0
    """Twice its priority level, plus 1 once a queue time-out moved it behind; lower goes first. Set by the batcher."""
    num_tokens: int = 0
    """What its texts became; 0 for a request without text."""
    num_truncated: int = 0
    """Its texts that were longer than the model reads."""
    arrival: int = 0
    """Number of its offer, from 1. Set by the batcher."""
    is_waiting: bool = False
    """In the batcher: accepted and not yet taken, expired or cancelled. Set by the batcher."""
    is_cancelled: bool = False
    """Nobody reads the answer any more; an item not yet started is not executed."""
    is_settled: bool = False

    def settle(self, outcome: Outcome) -> bool:
        """End this item and tell `on_settled`; False, and nothing happens, if it had ended already."""
        if self.is_settled:
            return False
        self.is_settled = True
        if self.on_settled is not None:
            self.on_settled(self, outcome)
        return True
