"""What workers tell in their heartbeats as Prometheus families, under Triton's names where it has one. Pure.

Each worker is a series of its own, so that one that dies takes no counts back from a sum. GPUs are told once per card,
whichever workers of its host told them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, get_args

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from contract.messages import WorkerBeat
from contract.model_config import QUEUE_BOUNDS_US, FailureReason, GpuStats, ModelStats

REASONS: Final[tuple[FailureReason, ...]] = get_args(FailureReason)
LABELS: Final = ("model", "version", "group", "worker")

_COUNTERS: Final[tuple[tuple[str, str, Callable[[ModelStats], float]], ...]] = (
    ("nv_inference_request_success", "Requests that succeeded.", lambda s: s.num_success),
    ("nv_inference_count", "Rows that were inferred.", lambda s: s.num_inferences),
    ("nv_inference_exec_count", "Executions; a micro-batch is one.", lambda s: s.num_executions),
    (
        "nv_inference_request_duration_us",
        "Queue and compute time of requests that succeeded, microseconds.",
        lambda s: s.queue_us + s.compute_input_us + s.compute_infer_us + s.compute_output_us,
    ),
    ("nv_inference_queue_duration_us", "Time from admission to execution, microseconds.", lambda s: s.queue_us),
    (
        "nv_inference_compute_input_duration_us",
        "Time requests spent while inputs were joined, microseconds.",
        lambda s: s.compute_input_us,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Time requests spent in the model, microseconds.",
        lambda s: s.compute_infer_us,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Time requests spent while outputs were split, microseconds.",
        lambda s: s.compute_output_us,
    ),
)
_GAUGES: Final[tuple[tuple[str, str, Callable[[ModelStats], float]], ...]] = (
    ("nv_inference_pending_request_count", "Requests that wait in the worker.", lambda s: s.num_pending),
    ("headrace_worker_rows_in_hand", "Rows a worker holds, waiting or running.", lambda s: s.num_in_hand),
    ("headrace_worker_credits", "Messages a worker has asked for and not got yet.", lambda s: s.num_credits),
    ("headrace_worker_instances", "Instances of a model in a worker.", lambda s: s.num_instances),
    ("headrace_worker_busy_instances", "Instances that are executing.", lambda s: s.num_busy_instances),
)
_GPU: Final[tuple[tuple[str, str, Callable[[GpuStats], float | None]], ...]] = (
    ("nv_gpu_utilization", "Share of time in which the GPU was busy, 0 to 1.", lambda g: g.utilization),
    ("nv_gpu_memory_total_bytes", "Memory of the GPU.", lambda g: g.memory_total_bytes),
    ("nv_gpu_memory_used_bytes", "Memory in use.", lambda g: g.memory_used_bytes),
    ("nv_gpu_power_usage", "Power drawn now, watts.", lambda g: g.power_w),
    ("nv_gpu_power_limit", "Most power it may draw, watts.", lambda g: g.power_limit_w),
)


def worker_families(beats: Sequence[WorkerBeat]) -> Iterable[Metric]:
    """Every family, those without a series too."""
    for name, text, value_of in _COUNTERS:
        yield _family(Metric(name, text, "counter"), beats, value_of)
    yield _failures(beats)
    for name, text, value_of in _GAUGES:
        yield _family(Metric(name, text, "gauge"), beats, value_of)
    yield _queue(beats)
    rss = GaugeMetricFamily("headrace_worker_rss_bytes", "Resident memory of a worker.", labels=("group", "worker"))
    for beat in beats:
        rss.add_metric((beat.group, beat.worker), beat.rss_bytes)
    yield rss
    yield from _gpus(beats)


def _each(beats: Sequence[WorkerBeat]) -> Iterable[tuple[Mapping[str, str], ModelStats]]:
    for beat in beats:
        for stats in beat.stats:
            yield dict(zip(LABELS, (stats.model, stats.version, beat.group, beat.worker), strict=True)), stats


def _family(metric: Metric, beats: Sequence[WorkerBeat], value_of: Callable[[ModelStats], float]) -> Metric:
    for labels, stats in _each(beats):
        metric.add_sample(metric.name, dict(labels), value_of(stats))
    return metric


def _failures(beats: Sequence[WorkerBeat]) -> Metric:
    """A series per reason, so that a rate can be taken of the first failure."""
    metric = Metric("nv_inference_request_failure", "Requests that failed, by reason.", "counter")
    for labels, stats in _each(beats):
        counts = dict.fromkeys(REASONS, 0) | stats.failures
        for reason, count in counts.items():
            metric.add_sample(metric.name, {**labels, "reason": reason}, count)
    return metric


def _queue(beats: Sequence[WorkerBeat]) -> Metric:
    metric = HistogramMetricFamily(
        "headrace_queue_seconds", "Time from admission at the gateway to execution, seconds.", labels=LABELS
    )
    for labels, stats in _each(beats):
        if len(stats.queue_buckets) == len(QUEUE_BOUNDS_US) + 1:  # another release's bounds may be others
            metric.add_metric([*labels.values()], cumulative(stats.queue_buckets), stats.queue_us / 1e6)
    return metric


def cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Counts per bucket as Prometheus wants them: upper bound in seconds, requests up to it."""
    total, buckets = 0, []
    for bound, count in zip((*(str(us / 1e6) for us in QUEUE_BOUNDS_US), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def _gpus(beats: Sequence[WorkerBeat]) -> Iterable[Metric]:
    gpus = {gpu.uuid: gpu for beat in beats for gpu in beat.gpus}
    for name, text, value_of in _GPU:
        metric = GaugeMetricFamily(name, text, labels=("gpu_uuid",))
        for uuid, gpu in gpus.items():
            value = value_of(gpu)
            if value is not None:
                metric.add_metric((uuid,), value)
        yield metric
    energy = Metric("nv_energy_consumption", "Energy drawn since the GPU's driver was loaded, joules.", "counter")
    for uuid, gpu in gpus.items():
        if gpu.energy_j is not None:
            energy.add_sample(energy.name, {"gpu_uuid": uuid}, gpu.energy_j)
    yield energy
