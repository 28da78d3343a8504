"""A model's config as both sides see it: what it takes, what it gives, how it is batched and queued. Pure data.

The worker makes it from config.pbtxt (workers/repository/pbtxt.py); the gateway gets it in heartbeats.

Source: Triton model_config.proto; names and defaults are its own.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

TimeoutAction = Literal["REJECT", "DELAY"]
ModelState = Literal["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]
FailureReason = Literal["REJECTED", "CANCELED", "EXPIRED", "BACKEND", "OTHER"]
"""Triton's four, and EXPIRED for a caller's deadline, which Triton does not have."""

QUEUE_BOUNDS_US: Final = (
    *(500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000),
    *(1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000),
)
"""Upper bounds of the queue time's buckets: 5 ms is where autoscalers look."""


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output. `dims` leaves the batch dimension out; -1 is any size."""

    name: str
    datatype: str
    """OIP datatype: BOOL, UINT8…UINT64, INT8…INT64, FP16, BF16, FP32, FP64, BYTES."""
    dims: tuple[int, ...]
    is_optional: bool = False
    is_ragged: bool = False
    """`allow_ragged_batch`: rows of unlike shape are padded with zeros to the longest of their micro-batch."""
    reshape: tuple[int, ...] | None = None
    """Shape (without batch) that the backend wants or gives instead of `dims`."""


class QueuePolicy(msgspec.Struct, frozen=True):
    """How long and how many may wait; 0 means no limit."""

    timeout_action: TimeoutAction = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class DynamicBatching(msgspec.Struct, frozen=True):
    """Triton's dynamic batcher."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: dict[int, QueuePolicy] = {}

    def policy(self, level: int) -> QueuePolicy:
        """Queue policy of a priority level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)


class InstanceGroup(msgspec.Struct, frozen=True):
    """`count` instances that run in parallel, on the CPU or on each of `gpus`."""

    count: int = 1
    kind: str = "KIND_CPU"
    gpus: tuple[int, ...] = ()
    name: str = ""


class ModelConfig(msgspec.Struct, frozen=True):
    """One model, all its versions."""

    name: str
    backend: str
    platform: str = ""
    max_batch_size: int = 0
    """0: the model has no batch dimension and requests are never joined."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    instance_groups: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    default_model_filename: str = ""
    parameters: dict[str, str] = {}
    max_execution_s: float = 60.0
    """Our parameter of that name: an execution that takes longer is ended and its instance replaced."""
    may_retry: bool = True
    """Our parameter `retry: never` makes it false: a request is never executed a second time."""

    @property
    def num_instances(self) -> int:
        """Executions that can run at once."""
        return sum(g.count * max(1, len(g.gpus)) for g in self.instance_groups)

    @property
    def is_eager(self) -> bool:
        """Whether the worker owns an exact queue: requests are not coalesced, credits are always open."""
        batching = self.dynamic_batching
        if batching is None:
            return False
        policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
        return batching.preserve_ordering or any(
            p.max_queue_size or p.default_timeout_us or p.allow_timeout_override for p in policies
        )

    @property
    def max_message_rows(self) -> int:
        """Most rows a coalesced message may carry; half a micro-batch where several instances share the queue."""
        if self.is_eager or self.max_batch_size <= 1:
            return 1
        return self.max_batch_size if self.num_instances == 1 else -(-self.max_batch_size // 2)


UNLOADED: Final = "unloaded"
"""Reason of an unavailable version that served until it was dropped: nobody will answer what still waits for it."""


class VersionState(msgspec.Struct, frozen=True):
    """One version of a model on one worker."""

    version: str
    """Empty where the model's config can't be read, so that nobody knows its versions."""
    state: ModelState
    reason: str = ""
    """Why it is unavailable; of a ready one, why what the repository now holds does not serve instead."""
    since_unix_ms: int = 0
    """When it began to load; 0 in every other state."""


class ModelCard(msgspec.Struct, frozen=True):
    """A model as a worker offers it."""

    config: ModelConfig
    versions: tuple[VersionState, ...]
    triton_config: dict[str, object] = {}
    """The whole config in Triton's JSON form, for `GET …/config`."""

    @property
    def ready_versions(self) -> tuple[str, ...]:
        """Ready versions, highest first."""
        ready = [v.version for v in self.versions if v.state == "READY"]
        return tuple(sorted(ready, key=int, reverse=True))


class ModelStats(msgspec.Struct):
    """Counters of one model version on one worker since it started, and its gauges now.

    `num_inferences` counts rows, `num_executions` model runs, as Triton counts them: only what succeeded. The
    `compute_…_us` too are Triton's: every request is charged the whole time of the execution it shared.
    """

    model: str
    version: str
    num_success: int = 0
    num_failed: int = 0
    num_inferences: int = 0
    num_executions: int = 0
    queue_us: int = 0
    compute_input_us: int = 0
    compute_infer_us: int = 0
    compute_output_us: int = 0
    num_pending: int = 0
    num_in_hand: int = 0
    num_credits: int = 0
    num_instances: int = 0
    num_busy_instances: int = 0
    last_inference_unix_ms: int = 0
    rows_per_execution: dict[int, int] = {}
    failures: dict[FailureReason, int] = {}
    """`num_failed` by reason."""
    failed_us: int = 0
    """From admission to the end, of all that failed."""
    batch_us: dict[int, tuple[int, int, int]] = {}
    """By rows of an execution: microseconds of input, inference and output, each execution once."""
    queue_buckets: tuple[int, ...] = ()
    """Requests that succeeded, by queue time: one count per bound of QUEUE_BOUNDS_US and one for longer."""
    since_unix_ms: int = 0
    """When these counters began. Unlike values are unlike lives: such counts add up."""


class GpuStats(msgspec.Struct, frozen=True):
    """One GPU as its driver tells it; None where that driver does not."""

    uuid: str
    utilization: float | None = None
    """Share of the last moment in which it was busy, 0 to 1."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
