"""What the driver says about this host's NVIDIA GPUs, read once a second in a thread. Allocates nothing on them.

Needs `nvidia-ml-py` (module `pynvml`) and a driver; without one of them there are no figures, and nothing is tried
again.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from contract.model_config import GpuStats

PERIOD_S: Final = 1.0

T = TypeVar("T")

log = structlog.get_logger()


def import_nvml() -> Any:
    """The library, started; None where it or the driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as e:  # noqa: BLE001 - a foreign library: no figures are no reason to stop serving
        log.debug("no-gpu-figures", error=str(e) or type(e).__name__)
        return None
    return nvml


def read_gpus(nvml: Any) -> list[GpuStats]:
    """All GPUs now; what a card does not tell is None."""
    num_gpus = _told(nvml.nvmlDeviceGetCount) or 0
    handles = [_told(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(num_gpus)]
    return [_read(nvml, handle) for handle in handles if handle is not None]


class GpuWatch:
    """The latest figures."""

    def __init__(self, load: Callable[[], Any] = import_nvml) -> None:
        self.latest: list[GpuStats] = []
        self._load = load

    async def run(self, stop: asyncio.Event) -> None:
        """Read until `stop`, never in the event loop: a driver may take its time."""
        nvml = await asyncio.to_thread(self._load)
        while nvml is not None and not stop.is_set():
            self.latest = await asyncio.to_thread(read_gpus, nvml)
            try:
                async with asyncio.timeout(PERIOD_S):
                    await stop.wait()
            except TimeoutError:
                continue


def _read(nvml: Any, handle: Any) -> GpuStats:
    uuid = _told(nvml.nvmlDeviceGetUUID, handle)
    memory = _told(nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _told(nvml.nvmlDeviceGetUtilizationRates, handle)
    return GpuStats(
        uuid=uuid.decode() if isinstance(uuid, bytes) else str(uuid or "unknown"),
        utilization=None if rates is None else rates.gpu / 100,
        memory_total_bytes=None if memory is None else memory.total,
        memory_used_bytes=None if memory is None else memory.used,
        power_w=_thousandth(_told(nvml.nvmlDeviceGetPowerUsage, handle)),
        power_limit_w=_thousandth(_told(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        energy_j=_thousandth(_told(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)),
    )


def _told(ask: Callable[..., T], *args: Any) -> T | None:
    """Not every card answers every question."""
    try:
        return ask(*args)
    except Exception as e:  # noqa: BLE001 - the library's errors are classes of its own making
        log.debug("gpu-does-not-tell", question=getattr(ask, "__name__", ""), error=str(e))
        return None


def _thousandth(value: int | None) -> float | None:
    """Milliwatts and millijoules to watts and joules."""
    return None if value is None else value / 1000
