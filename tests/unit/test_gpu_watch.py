"""GPU figures from a library that answers as NVIDIA's does, or does not."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

import pytest

from contract.model_config import GpuStats
from tests.support.waiting import until
from workers.gpu_watch import GpuWatch, import_nvml, read_gpus

MIB = 2**20


class NotSupported(Exception):
    pass


def nvml(num_gpus: int = 1, **answers: Any) -> Any:
    """A module with the functions that are used; an answer that is an exception is raised."""
    known: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetCount": num_gpus,
        "nvmlDeviceGetUUID": "GPU-1",
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=80 * MIB, used=20 * MIB),
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=25, memory=3),
        "nvmlDeviceGetPowerUsage": 71_500,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": 5_000,
        **answers,
    }

    def function(value: Any) -> Any:
        def ask(*_: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return ask

    module = types.SimpleNamespace(**{name: function(value) for name, value in known.items()})
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    return module


def test_figures_are_in_units_that_prometheus_uses() -> None:
    assert read_gpus(nvml()) == [GpuStats("GPU-1", 0.25, 80 * MIB, 20 * MIB, 71.5, 700.0, 5.0)]


def test_a_question_that_a_card_does_not_answer_is_left_open() -> None:
    (gpu,) = read_gpus(
        nvml(nvmlDeviceGetPowerUsage=NotSupported(), nvmlDeviceGetUtilizationRates=NotSupported("on MIG"))
    )
    assert (gpu.power_w, gpu.utilization) == (None, None)
    assert gpu.memory_used_bytes == 20 * MIB


def test_an_older_library_gives_the_uuid_as_bytes() -> None:
    (gpu,) = read_gpus(nvml(nvmlDeviceGetUUID=b"GPU-2"))
    assert gpu.uuid == "GPU-2"


def test_a_driver_that_went_away_leaves_no_figures() -> None:
    assert read_gpus(nvml(nvmlDeviceGetCount=NotSupported("driver unloaded"))) == []


def test_the_library_is_used_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert import_nvml() is library


@pytest.mark.parametrize("library", [None, nvml(nvmlInit=NotSupported("no driver"))])
def test_without_library_or_driver_nothing_is_watched(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert import_nvml() is None


async def test_a_watch_reads_in_a_thread_until_it_is_stopped() -> None:
    stop, watch = asyncio.Event(), GpuWatch(lambda: nvml(num_gpus=2))
    running = asyncio.create_task(watch.run(stop))
    await until(lambda: watch.latest)
    stop.set()
    async with asyncio.timeout(20):
        await running
    assert len(watch.latest) == 2


async def test_a_watch_without_a_library_ends_at_once() -> None:
    watch = GpuWatch(lambda: None)
    async with asyncio.timeout(20):
        await watch.run(asyncio.Event())
    assert watch.latest == []
