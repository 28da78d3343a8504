"""Models written as Python functions, and a real worker around them on an in-process broker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contract.envelope import unpack
from contract.messages import WorkerBeat
from contract.model_config import DynamicBatching, ModelConfig, TensorSpec, VersionState
from contract.subjects import WORKER_BEATS
from transport.memory import MemoryBroker
from workers.backends.base import InstanceSource
from workers.life import Worker
from workers.repository.refusal import ConfigRefused
from workers.repository.scan import ModelEntry
from workers.settings import WorkerSettings

WAIT_S = 20.0
POLL_S = 0.002


class Double:
    """Doubles IN. Notes every execution's rows; blocks while `hold` is cleared; `on_run` may raise."""

    is_request_wise = False
    holds_process = False

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.seen: list[float] = []
        self.threads: list[str] = []
        self.started = threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.on_run: Callable[[np.ndarray], None] | None = None
        self.num_closed = 0

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        array = inputs["IN"]
        if array.any():  # zeros are the warm-up's
            self.rows.append(len(array))
            self.seen.extend(array[:, 0].tolist())
            self.threads.append(threading.current_thread().name)
            self.started.set()
            assert self.hold.wait(WAIT_S), "the test let go"
            if self.on_run is not None:
                self.on_run(array)
        return {"OUT": array * 2}

    def run_requests(self, requests: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.num_closed += 1


def double_config(name: str = "m", *, max_batch_size: int = 8, batching: Any = True, **fields: Any) -> ModelConfig:
    fields.setdefault("inputs", (TensorSpec("IN", "FP32", (2,)),))
    fields.setdefault("outputs", (TensorSpec("OUT", "FP32", (2,)),))
    dynamic = DynamicBatching() if batching is True else batching
    return ModelConfig(name, "double", max_batch_size=max_batch_size, dynamic_batching=dynamic, **fields)


def entry(config: ModelConfig, *versions: str, unavailable: Sequence[VersionState] = ()) -> ModelEntry:
    return ModelEntry(config.name, Path("nowhere"), config, {}, versions or ("1",), tuple(unavailable))


def row(value: float, rows: int = 1) -> dict[str, np.ndarray]:
    """A request of `rows` rows that all are `value`."""
    return {"IN": np.full((rows, 2), value, np.float32)}


class Running:
    """A worker in this loop, its models' instances, and its beats."""

    def __init__(self, worker: Worker, instances: dict[tuple[str, str], list[Double]]) -> None:
        self.worker = worker
        self.instances = instances
        self.beats: list[WorkerBeat] = []
        self._news = asyncio.Condition()

    def model(self, name: str = "m", version: str = "1", index: int = 0) -> Double:
        return self.instances[name, version][index]

    async def until(self, holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait until something is true that no event tells."""
        for _ in range(int(timeout_s / POLL_S)):
            if holds():
                return
            await asyncio.sleep(POLL_S)
        raise AssertionError("it did not become true")

    async def beat(self, holds: Callable[[WorkerBeat], bool], timeout_s: float = WAIT_S) -> WorkerBeat:
        """The first heartbeat from now on, or the last one, for which `holds`."""

        def found() -> bool:
            return bool(self.beats) and holds(self.beats[-1])

        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(found)
        return self.beats[-1]

    def _on_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        beat, _ = unpack(WorkerBeat, payload)
        if beat.worker == self.worker.name:
            self.beats.append(beat)
            task = asyncio.get_running_loop().create_task(self._tell())
            self._task = task

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def state_of(beat: WorkerBeat, model: str = "m", version: str = "1") -> str:
    for card in beat.models:
        for state in card.versions:
            if (card.config.name, state.version) == (model, version):
                return state.state
    return ""


@asynccontextmanager
async def running(
    broker: MemoryBroker,
    *entries: ModelEntry,
    make: Callable[[InstanceSource], Any] | None = None,
    wait_for: Sequence[str] | None = None,
    inline: bool = False,
    **settings: Any,
) -> AsyncIterator[Running]:
    """A worker serving `entries`, drained at the end. Models run in threads unless `inline`."""
    settings.setdefault("drain_timeout_s", 5.0)
    if not inline:
        settings["inline_below_us"] = 0
    else:
        settings["inline_below_us"] = 10_000
    instances: dict[tuple[str, str], list[Double]] = {}

    def load(source: InstanceSource) -> Any:
        instance = make(source) if make is not None else Double()
        instances.setdefault((source.config.name, source.version), []).append(instance)
        return instance

    def names(_path: Path, wanted: Sequence[str]) -> list[str]:
        if unknown := set(wanted) - {"*", *(e.name for e in entries)}:
            raise ConfigRefused(f"{sorted(unknown)} are not there")
        return [e.name for e in entries if not wanted or "*" in wanted or e.name in wanted]

    def read(model_dir: Path, config: str = "") -> ModelEntry:
        return next(e for e in entries if e.name == model_dir.name)

    transport = await broker.connect("worker")
    worker = Worker(WorkerSettings(**settings), transport, load=load, names=names, read=read)
    found = Running(worker, instances)
    listener = await broker.connect("listener")
    await listener.subscribe(WORKER_BEATS, found._on_beat)
    life = asyncio.create_task(worker.run())
    try:
        wanted = [e.name for e in entries] if wait_for is None else wait_for
        await found.beat(lambda b: all(_is_ready(b, name) for name in wanted))
        yield found
    finally:
        for models in instances.values():
            for model in models:
                if isinstance(model, Double):
                    model.hold.set()
        worker.stop.set()
        async with asyncio.timeout(WAIT_S):
            await life
        await listener.close()
        await transport.close()


def _is_ready(beat: WorkerBeat, name: str) -> bool:
    card = next((c for c in beat.models if c.config.name == name), None)
    return card is not None and all(s.state != "LOADING" for s in card.versions)
