"""`/metrics`: Triton's names for what workers did, `headrace_…` for this gateway. Collects when asked, counts nothing.

Workers report in their heartbeats; each worker is a series of its own, so that one that dies takes no counts back from
a sum. Several gateways hear the same workers: add up over workers, not over gateways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from contract.messages import WorkerBeat
from contract.model_config import ModelStats
from gateway.http.counters import BOUNDS_S, DoorCounters

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class GatewayNumbers:
    """What the gateway knows beside its HTTP door, at one moment."""

    beats: Sequence[WorkerBeat] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    """By name without prefix and suffix: `messages` becomes `headrace_messages_total`. GATEWAY_HELP has the known."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """By name without prefix: `held_bytes` becomes `headrace_held_bytes`."""


MetricsSource = Callable[[], GatewayNumbers]

GATEWAY_HELP: Final = {
    "messages": "Messages published to the online queue; several requests may share one.",
    "published_requests": "Requests in those messages.",
    "duplicate_answers": "Answers that came after the first one and were dropped.",
    "unreadable_replies": "Replies that were no messages of a format this gateway reads.",
    "cancelled_requests": "Requests whose caller left or whose deadline passed, told to the workers.",
    "resent_requests": "Requests published again because the broker lost them.",
    "expired_requests": "Requests whose deadline passed before their answer.",
    "reconnects": "Times the connection to the broker came back.",
    "held_bytes": "Bytes of accepted requests that are not answered yet.",
    "open_requests": "Accepted requests that are not answered yet, over all doors.",
    "ready": "1 if this gateway takes requests.",
}

_WORKER_COUNTERS: Final[tuple[tuple[str, str, Callable[[ModelStats], float]], ...]] = (
    ("nv_inference_request_success", "Requests that succeeded.", lambda s: s.num_success),
    ("nv_inference_request_failure", "Requests that failed.", lambda s: s.num_failed),
    ("nv_inference_count", "Rows that were inferred.", lambda s: s.num_inferences),
    ("nv_inference_exec_count", "Executions; a micro-batch is one.", lambda s: s.num_executions),
    (
        "nv_inference_request_duration_us",
        "Queue and compute time of all requests, microseconds.",
        lambda s: s.queue_us + s.compute_input_us + s.compute_infer_us + s.compute_output_us,
    ),
    ("nv_inference_queue_duration_us", "Time from admission to execution, microseconds.", lambda s: s.queue_us),
    ("nv_inference_compute_input_duration_us", "Time spent on inputs, microseconds.", lambda s: s.compute_input_us),
    ("nv_inference_compute_infer_duration_us", "Time spent in models, microseconds.", lambda s: s.compute_infer_us),
    ("nv_inference_compute_output_duration_us", "Time spent on outputs, microseconds.", lambda s: s.compute_output_us),
)
_WORKER_GAUGES: Final[tuple[tuple[str, str, Callable[[ModelStats], float]], ...]] = (
    ("nv_inference_pending_request_count", "Requests waiting in the worker.", lambda s: s.num_pending),
    ("headrace_worker_rows_in_hand", "Rows a worker holds, waiting or running.", lambda s: s.num_in_hand),
    ("headrace_worker_credits", "Messages a worker has asked for and not got yet.", lambda s: s.num_credits),
    ("headrace_worker_instances", "Instances of a model in a worker.", lambda s: s.num_instances),
    ("headrace_worker_busy_instances", "Instances that are executing.", lambda s: s.num_busy_instances),
)
_LABELS: Final = ("model", "version", "group", "worker")
# prometheus_client describes every counter under a name that ends in _total; Triton's names do not.
_TRITON_COUNTER = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)


class GatewayCollector(Collector):
    """Reads the counters when Prometheus asks."""

    def __init__(self, counters: DoorCounters, source: MetricsSource) -> None:
        self._counters = counters
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Every series of this gateway."""
        numbers = self._source()
        yield from _door(self._counters)
        for name, value in numbers.counters.items():
            yield CounterMetricFamily(f"headrace_{name}", GATEWAY_HELP.get(name, name), value=value)
        for name, value in numbers.gauges.items():
            yield GaugeMetricFamily(f"headrace_{name}", GATEWAY_HELP.get(name, name), value=value)
        yield from _workers(numbers.beats)


class MetricsPage:
    """The text of `/metrics`."""

    def __init__(self, counters: DoorCounters, source: MetricsSource) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(GatewayCollector(counters, source))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return _TRITON_COUNTER.sub(rb"\1 ", generate_latest(self._registry))


def _door(counters: DoorCounters) -> Iterable[Metric]:
    requests = CounterMetricFamily(
        "headrace_http_requests", "Infer requests over HTTP that ended, by error code.", labels=("model", "code")
    )
    for (model, code), count in sorted(counters.requests.items()):
        requests.add_metric((model, code), count)
    yield requests
    yield GaugeMetricFamily(
        "headrace_http_in_flight", "Infer requests over HTTP without an answer yet.", value=counters.num_in_flight
    )
    yield GaugeMetricFamily("headrace_http_connections", "Open HTTP connections.", value=counters.num_connections)
    yield CounterMetricFamily(
        "headrace_http_cut_off", "HTTP connections ended for dawdling.", value=counters.num_cut_off
    )
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counters.buckets, strict=True):
        total += count
        buckets.append((bound, total))
    latency = HistogramMetricFamily(
        "headrace_http_request_duration_seconds", "From the last byte of a request to its answer, seconds."
    )
    latency.add_metric((), buckets, counters.sum_s)
    yield latency


def _workers(beats: Sequence[WorkerBeat]) -> Iterable[Metric]:
    for name, text, value_of in _WORKER_COUNTERS:
        yield _family(Metric(name, text, "counter"), beats, value_of)
    for name, text, value_of in _WORKER_GAUGES:
        yield _family(Metric(name, text, "gauge"), beats, value_of)
    rss = GaugeMetricFamily("headrace_worker_rss_bytes", "Resident memory of a worker.", labels=("group", "worker"))
    for beat in beats:
        rss.add_metric((beat.group, beat.worker), beat.rss_bytes)
    yield rss


def _family(metric: Metric, beats: Sequence[WorkerBeat], value_of: Callable[[ModelStats], float]) -> Metric:
    for beat in beats:
        for stats in beat.stats:
            labels = dict(zip(_LABELS, (stats.model, stats.version, beat.group, beat.worker), strict=True))
            metric.add_sample(metric.name, labels, value_of(stats))
    return metric
