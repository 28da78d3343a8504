"""`/metrics`: Triton's names for what workers did, `headrace_…` for this gateway. Collects when asked, counts nothing.

Workers report in their heartbeats (worker_metrics.py). Several gateways hear the same workers: add up over workers, not
over gateways. Every name is explained in docs/metrics.md.
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
from gateway.http.counters import BOUNDS_S, DoorCounters
from gateway.http.worker_metrics import worker_families

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True, slots=True)
class GatewayNumbers:
    """What the gateway knows beside its HTTP door, at one moment."""

    beats: Sequence[WorkerBeat] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    """By name without prefix and suffix: `messages` becomes `headrace_messages_total`. GATEWAY_HELP has the known."""
    gauges: Mapping[str, float] = field(default_factory=dict)
    """By name without prefix: `held_bytes` becomes `headrace_held_bytes`."""
    open_by_model: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By (group, model): accepted requests without an answer."""


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
        yield _open(numbers.open_by_model)
        yield from worker_families(numbers.beats)


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


def _open(open_by_model: Mapping[tuple[str, str], int]) -> Metric:
    """In the broker, in workers' hands or running: for an autoscaler that scales on work, not on time."""
    family = GaugeMetricFamily(
        "headrace_model_open_requests",
        "Requests of a model that this gateway accepted and that are not answered yet.",
        labels=("model", "group"),
    )
    for (group, model), count in sorted(open_by_model.items()):
        family.add_metric((model, group), count)
    return family
