"""Known numbers of requests and rows through a real worker and a real gateway: exactly these counts come out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from contract.messages import ControlRequest
from contract.model_config import DynamicBatching, QueuePolicy
from gateway.app import numbers
from gateway.dispatch import Dispatch
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings
from tests.support.http_kit import HOST, identify
from tests.support.waiting import until
from tests.support.worker_kit import double_config, entry, running
from transport.memory import MemoryBroker

NS_PER_US = 1_000


class Service:
    """One gateway with its doors."""

    def __init__(self, core: Dispatch, door: HttpDoor, client: triton_aio.InferenceServerClient) -> None:
        self.core = core
        self.door = door
        self.client = client

    async def infer(self, value: float, rows: int = 1, model: str = "m", version: str = "", **more: Any) -> None:
        tensor = triton.InferInput("IN", [rows, 2], "FP32")
        tensor.set_data_from_numpy(np.full((rows, 2), value, np.float32))
        await self.client.infer(model, [tensor], model_version=version, **more)

    async def fails(self, value: float, rows: int = 1, **more: Any) -> str:
        """Ask and be refused; the HTTP status."""
        with pytest.raises(InferenceServerException) as found:
            await self.infer(value, rows, **more)
        return str(found.value.status())

    async def stats(self, model: str = "m", version: str = "") -> dict[str, Any]:
        """Of the only version asked for."""
        (found,) = (await self.client.get_inference_statistics(model, version))["model_stats"]
        return dict(found)

    async def samples(self) -> dict[str, list[Any]]:
        """`/metrics` by sample name, as Prometheus' own parser reads it; Triton's counters get `_total` there."""
        async with httpx.AsyncClient(timeout=20) as http:
            text = (await http.get(f"http://{HOST}:{self.door.metrics_port}/metrics")).text
        found: dict[str, list[Any]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
        return found


def value_of(samples: dict[str, list[Any]], name: str, **labels: str) -> float:
    """The sum of what carries these labels."""
    return sum(s.value for s in samples[name] if labels.items() <= s.labels.items())


@contextlib.asynccontextmanager
async def serving(broker: MemoryBroker, **settings: Any) -> AsyncIterator[Service]:
    found = GatewaySettings(http_port=0, metrics_port=0, **settings)
    transport = await broker.connect("gateway")
    core = Dispatch(found, transport)
    await core.start()
    door = HttpDoor(core, identify, found, lambda: numbers(core, transport))
    await door.start()
    try:
        async with triton_aio.InferenceServerClient(f"{HOST}:{door.port}") as client:
            yield Service(core, door, client)
    finally:
        await core.close()
        await door.close()
        await transport.close()


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "threads"])
async def test_requests_rows_and_executions_are_counted_exactly(memory_broker: MemoryBroker, inline: bool) -> None:
    async with running(memory_broker, entry(double_config()), inline=inline) as w, serving(memory_broker) as service:
        sizes = [1, 1, 3, 2, 8, 1, 5, 1, 1, 4]
        await asyncio.gather(*(service.infer(1, rows) for rows in sizes))
        ran = Counter(w.model().rows)
        found = await service.stats()
        assert (found["name"], found["version"]) == ("m", "1")
        assert found["inference_count"] == sum(sizes)
        assert found["execution_count"] == sum(ran.values())
        assert abs(time.time() * 1000 - found["last_inference"]) < 20_000
        by_size = {b["batch_size"]: b for b in found["batch_stats"]}
        assert {size: b["compute_infer"]["count"] for size, b in by_size.items()} == ran
        inner = found["inference_stats"]
        counts = {name: inner[name]["count"] for name in inner}
        assert counts == {
            **dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), len(sizes)),
            **dict.fromkeys(("fail", "cache_hit", "cache_miss"), 0),
        }
        assert inner["queue"]["ns"] > 0
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        assert inner["success"]["ns"] == sum(inner[name]["ns"] for name in parts)
        samples = await service.samples()
        labels = {"model": "m", "version": "1", "group": "default", "worker": w.worker.name}
        assert value_of(samples, "nv_inference_request_success_total", **labels) == len(sizes)
        assert value_of(samples, "nv_inference_count_total", **labels) == sum(sizes)
        assert value_of(samples, "nv_inference_exec_count_total", **labels) == sum(ran.values())
        queue_us = inner["queue"]["ns"] / NS_PER_US
        assert value_of(samples, "nv_inference_queue_duration_us_total", **labels) == queue_us
        assert value_of(samples, "headrace_queue_seconds_count", **labels) == len(sizes)
        assert value_of(samples, "headrace_queue_seconds_sum", **labels) == pytest.approx(queue_us / 1e6)
        assert value_of(samples, "headrace_worker_rss_bytes", worker=w.worker.name) > 1e6


async def test_a_failing_model_counts_the_guilty_as_failed_and_only_good_executions(
    memory_broker: MemoryBroker,
) -> None:
    def refuse(array: np.ndarray[Any, Any]) -> None:
        if (array == 13).any():
            raise ValueError("no thirteens")

    async with running(memory_broker, entry(double_config())) as w, serving(memory_broker) as service:
        w.model().on_run = refuse
        good = [asyncio.create_task(service.infer(1)) for _ in range(5)]
        bad = [asyncio.create_task(service.fails(13)) for _ in range(2)]
        assert await asyncio.gather(*bad) == ["500", "500"]
        await asyncio.gather(*good)
        found = await service.stats()
        assert found["inference_stats"]["success"]["count"] == found["inference_count"] == 5
        assert found["inference_stats"]["fail"]["count"] == 2
        assert found["inference_stats"]["fail"]["ns"] > 0
        assert sum(b["batch_size"] * b["compute_infer"]["count"] for b in found["batch_stats"]) == 5
        samples = await service.samples()
        assert value_of(samples, "nv_inference_request_failure_total", reason="BACKEND", model="m", version="1") == 2
        assert value_of(samples, "nv_inference_request_failure_total", model="m") == 2


async def test_who_is_refused_expires_or_leaves_is_counted_under_its_reason(memory_broker: MemoryBroker) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2))
    config = double_config(max_batch_size=1, batching=batching)
    async with running(memory_broker, entry(config)) as w, serving(memory_broker) as service:
        model = w.model()
        model.hold.clear()
        runs = asyncio.create_task(service.infer(1))
        await until(model.started.is_set)
        expires = asyncio.create_task(service.fails(2, headers={"Headrace-Timeout-Ms": "400"}))
        leaves = asyncio.create_task(service.infer(3))
        await until(lambda: w.worker.models["m"].stats()[0].num_pending == 2)
        assert await service.fails(4) == "503"
        leaves.cancel()
        assert await expires == "504"
        counted = w.worker.desk.counters_of("m", "1")
        await until(lambda: counted.to_stats("m", "1").num_failed == 3)
        model.hold.set()
        await runs
        samples = await service.samples()
        failures = {
            reason: value_of(samples, "nv_inference_request_failure_total", reason=reason, model="m", version="1")
            for reason in ("REJECTED", "EXPIRED", "CANCELED", "BACKEND", "OTHER")
        }
        assert failures == {"REJECTED": 1, "EXPIRED": 1, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}
        found = await service.stats()
        assert (found["inference_count"], found["inference_stats"]["fail"]["count"]) == (1, 3)


async def test_queue_time_counts_from_admission_and_falls_into_its_bucket(memory_broker: MemoryBroker) -> None:
    async with running(memory_broker, entry(double_config(max_batch_size=1))) as w, serving(memory_broker) as service:
        model = w.model()
        model.hold.clear()
        first = asyncio.create_task(service.infer(1))
        await until(model.started.is_set)
        second = asyncio.create_task(service.infer(2))
        await until(lambda: len(service.core.inflight) == 2)
        pending = await service.samples()
        assert value_of(pending, "headrace_model_open_requests", model="m", group="default") == 2
        await asyncio.sleep(0.06)  # what the second one waits is what is measured
        model.hold.set()
        await asyncio.gather(first, second)
        samples = await service.samples()
        up_to_50_ms = value_of(samples, "headrace_queue_seconds_bucket", model="m", le="0.05")
        assert value_of(samples, "headrace_queue_seconds_count", model="m") == 2
        assert up_to_50_ms <= 1
        assert value_of(samples, "headrace_queue_seconds_sum", model="m") > 0.06
        assert value_of(samples, "headrace_model_open_requests", model="m") == 0


async def test_statistics_outlive_the_worker_and_add_up_over_workers(memory_broker: MemoryBroker) -> None:
    async with serving(memory_broker) as service:
        async with running(memory_broker, entry(double_config())):
            await until(lambda: service.core.registry.card("default", "m"))
            for _ in range(3):
                await service.infer(1, rows=2)
            assert (await service.stats())["inference_count"] == 6
        async with running(memory_broker, entry(double_config())), running(memory_broker, entry(double_config())):
            await until(lambda: service.core.registry.card("default", "m"))
            await asyncio.gather(*(service.infer(1) for _ in range(4)))
            found = await service.stats()
            assert found["inference_count"] == 10
            assert found["inference_stats"]["success"]["count"] == 7


async def test_a_version_loaded_again_counts_on(memory_broker: MemoryBroker) -> None:
    explicit = {"model_control_mode": "explicit", "models": ["m"]}
    async with running(memory_broker, entry(double_config()), **explicit) as w, serving(memory_broker) as service:
        await service.infer(1)
        for action in ("unload", "load"):
            assert (await w.worker.control(ControlRequest(action, "m"))).error == ""
        await until(lambda: (card := service.core.registry.card("default", "m")) and card.ready_versions)
        await service.infer(1)
        assert (await service.stats())["inference_count"] == 2


async def test_each_version_and_each_model_has_its_own_statistics(memory_broker: MemoryBroker) -> None:
    entries = (entry(double_config(), "1", "2"), entry(double_config("n")))
    async with running(memory_broker, *entries), serving(memory_broker) as service:
        await service.infer(1, version="1")
        await service.infer(1)
        await service.infer(1, rows=3, version="2")
        await service.infer(1, model="n")
        every = (await service.client.get_inference_statistics())["model_stats"]
        found = {(s["name"], s["version"]): s["inference_count"] for s in every}
        assert found == {("m", "1"): 1, ("m", "2"): 4, ("n", "1"): 1}
        both = (await service.client.get_inference_statistics("m"))["model_stats"]
        assert [s["version"] for s in both] == ["1", "2"]
        assert (await service.stats("m", "2"))["execution_count"] == 2


async def test_the_statistics_of_what_is_not_there_are_refused(memory_broker: MemoryBroker) -> None:
    async with running(memory_broker, entry(double_config())), serving(memory_broker) as service:
        for arguments in (("nobody", ""), ("m", "9")):
            with pytest.raises(InferenceServerException) as found:
                await service.client.get_inference_statistics(*arguments)
            assert found.value.status() == "404"
        metadata = await service.client.get_server_metadata()
        assert "statistics" in metadata["extensions"]


async def test_a_silent_worker_delays_the_figures_but_a_moment(memory_broker: MemoryBroker) -> None:
    async with running(memory_broker, entry(double_config())) as w, serving(memory_broker) as service:
        await service.infer(1)
        await service.stats()
        w.worker.presence.beat = lambda: None  # type: ignore[method-assign]
        started_s = time.monotonic()
        assert (await service.stats())["inference_count"] == 1
        assert time.monotonic() - started_s < 2


async def test_the_synchronous_client_reads_them_too(memory_broker: MemoryBroker) -> None:
    async with running(memory_broker, entry(double_config())), serving(memory_broker) as service:
        await service.infer(1, rows=2)

        def ask() -> Any:
            with triton.InferenceServerClient(f"{HOST}:{service.door.port}", network_timeout=20) as client:
                return client.get_inference_statistics("m")

        assert (await asyncio.to_thread(ask))["model_stats"][0]["inference_count"] == 2
