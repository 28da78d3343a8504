"""docs/metrics.md and the rules under deploy/ against what `/metrics` has: every name both ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from contract.messages import WorkerBeat
from contract.model_config import QUEUE_BOUNDS_US, GpuStats, ModelStats
from gateway.http.counters import DoorCounters
from gateway.http.metrics import GATEWAY_HELP, GatewayNumbers, MetricsPage
from gateway.http.statistics import model_stats
from gateway.http.worker_metrics import REASONS

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/metrics.md").read_text()
GAUGES = ("held_bytes", "open_requests", "ready")
RULES = [*sorted((ROOT / "deploy/autoscale").glob("*.yaml")), ROOT / "deploy/prometheus/rules.yaml"]
NAME = re.compile(r"\b((?:nv|headrace)_[a-z0-9_]+)\b")


def page() -> str:
    """A page on which everything has happened."""
    counters = DoorCounters()
    counters.began()
    counters.ended("m", "ok", 0.1)
    stats = ModelStats("m", "1", num_success=1, queue_buckets=(1, *[0] * len(QUEUE_BOUNDS_US)))
    beat = WorkerBeat(
        "w", "g", 0, "0", "h", 1, "serving", [], [stats], 1, [GpuStats("GPU-1", 0.5, 2, 1, 1.0, 2.0, 3.0)]
    )
    numbers = GatewayNumbers(
        [beat],
        {name: 1 for name in GATEWAY_HELP if name not in GAUGES},
        dict.fromkeys(GAUGES, 1),
        {("g", "m"): 1},
    )
    return MetricsPage(counters, lambda: numbers).text().decode()


TEXT = page()
SERIES = re.findall(r"^(\w+)(\{.*\})? \S+$", TEXT, re.MULTILINE)
SAMPLES = {name for name, _ in SERIES}


def rows(section: str) -> list[list[str]]:
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert found
    lines = [line for line in found[1].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


TOLD = {row[0].strip("` "): row[1] for section in ("What workers did", "GPUs", "This gateway") for row in rows(section)}


def test_every_metric_is_explained_with_its_type_and_none_that_is_not_there() -> None:
    assert dict(re.findall(r"^# TYPE (\S+) (\w+)$", TEXT, re.MULTILINE)) == TOLD


def test_the_page_is_what_prometheus_own_parser_reads() -> None:
    families = {family.name: family for family in text_string_to_metric_families(TEXT)}
    assert families["nv_inference_request_failure"].type == "counter"
    assert {s.labels["reason"] for s in families["nv_inference_request_failure"].samples} == set(REASONS)
    assert sum(len(family.samples) for family in families.values()) == len(SERIES)


def test_the_labels_of_what_workers_did_are_those_told() -> None:
    for name, labels in SERIES:
        base = re.sub(r"_(?:bucket|count|sum|created)$", "", name) if name.startswith("headrace_queue") else name
        if base not in {row[0].strip("` ") for row in rows("What workers did")}:
            continue
        wanted = {"model", "version", "group", "worker"}
        if base == "nv_inference_request_failure":
            wanted |= {"reason"}
        if base == "headrace_worker_rss_bytes":
            wanted = {"group", "worker"}
        assert set(re.findall(r'(\w+)="', labels)) - {"le"} == wanted, name


def test_every_reason_is_explained() -> None:
    assert {row[0].strip("` ") for row in rows("How things are counted")} == set(REASONS)


def test_every_field_of_the_statistics_is_explained() -> None:
    told = {name for row in rows("Statistics") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == set(model_stats(ModelStats("m", "1")))
    inner = next(row[1] for row in rows("Statistics") if row[0] == "`inference_stats`")
    assert set(model_stats(ModelStats("m", "1"))["inference_stats"]) <= set(re.findall(r"`(\w+)`", inner))


@pytest.mark.parametrize("path", RULES, ids=lambda p: p.name)
def test_the_rules_name_only_metrics_that_exist(path: Path) -> None:
    text = re.sub(r"#.*", "", path.read_text())
    made = set(re.findall(r"\b(?:as|record): *([\w:]+)", text))
    made_inner = {name for record in made for name in NAME.findall(record)} | made
    recorded = {part for record in made for part in record.split(":")}
    used = set(NAME.findall(text)) - made_inner - recorded
    assert used
    assert used <= SAMPLES
    for record in re.findall(r"\bmodel:[\w:]+", text):
        assert record in made, record


@pytest.mark.parametrize("path", RULES, ids=lambda p: p.name)
def test_the_rules_are_yaml_of_the_shape_their_readers_want(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert all(isinstance(d, dict) and ("groups" in d or {"apiVersion", "kind"} <= set(d)) for d in documents)


def test_a_bucket_bound_lies_where_the_autoscaler_looks() -> None:
    (threshold,) = re.findall(r'threshold: "(0\.\d+)"', (ROOT / "deploy/autoscale/keda.yaml").read_text())
    labels = [labels for name, labels in SERIES if name == "headrace_queue_seconds_bucket"]
    bounds = {found[1] for text in labels if (found := re.search(r'le="([^"]+)"', text))}
    assert threshold in bounds
