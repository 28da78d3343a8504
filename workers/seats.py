"""One model instance's place: its thread, loading and warm-up, and a new thread for one that hangs.

Decides nothing about requests; serving.py gives it micro-batches. An instance whose process died is loaded again by
its executor (instance.py); a Python thread that does not return can only be left behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from contract.model_config import ModelConfig
from contract.tensors import Array
from workers.backends.base import InstanceRequest, InstanceSource, ModelInstance, RequestResult
from workers.backoff import Backoff
from workers.classify import NO_LABELS
from workers.instance import Deliver, Execution, Executor
from workers.items import Outcome, WorkItem
from workers.repository.labels import read_labels
from workers.threads import Failure, JobThread
from workers.warmup import configured_runs, zero_run

LoadInstance = Callable[[InstanceSource], ModelInstance]

RELOAD_BACKOFF_S: Final = 0.2
MEASURE_BELOW_S: Final = 0.005
"""A model whose second run is not shorter either is not tiny; a few more runs tell a tiny one's time."""
NUM_MEASURES: Final = 5
CLOSE_TIMEOUT_S: Final = 6.0
"""Backends promise five seconds."""

log = structlog.get_logger()


class Watched:
    """An instance that says since when it has been executing. Everything else is the instance's own."""

    __slots__ = ("_instance", "holds_process", "is_request_wise", "running_since_s")

    def __init__(self, instance: ModelInstance) -> None:
        self._instance = instance
        self.is_request_wise = instance.is_request_wise
        self.holds_process = instance.holds_process
        self.running_since_s: float | None = None

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """As the instance does."""
        self.running_since_s = time.monotonic()
        try:
            return self._instance.run(inputs, outputs)
        finally:
            self.running_since_s = None

    def run_requests(self, requests: Sequence[InstanceRequest]) -> Sequence[RequestResult]:
        """As the instance does."""
        self.running_since_s = time.monotonic()
        try:
            return self._instance.run_requests(requests)
        finally:
            self.running_since_s = None

    def close(self) -> None:
        """As the instance does."""
        self._instance.close()


class Seat:
    """A place for one instance."""

    def __init__(self, source: InstanceSource, load: LoadInstance) -> None:
        self.source = source
        self._load = load
        self._thread = JobThread(self._thread_name())
        self._labels = NO_LABELS
        self._executor: Executor | None = None
        self._reloading: asyncio.Task[None] | None = None
        self.run_s: float | None = None
        """Shortest warm-up execution; None where there was none."""
        self.reason = ""
        """Why there is no instance, once loading has failed."""

    @property
    def is_loaded(self) -> bool:
        """Whether there is an instance, idle or not."""
        return self._executor is not None

    @property
    def is_idle(self) -> bool:
        """Whether it can take a micro-batch now."""
        return self._executor is not None and not self._thread.is_busy

    @property
    def instance(self) -> ModelInstance | None:
        """The instance itself, for executions in the event loop."""
        return None if self._executor is None else self._executor.instance

    @property
    def inline_run_s(self) -> float | None:
        """Measured run time of an instance that may run in the event loop; None for one that may not."""
        instance = self.instance
        return None if instance is None or instance.is_request_wise or instance.holds_process else self.run_s

    @property
    def running_since_s(self) -> float | None:
        """Start of the model run that its thread is in now."""
        instance = self.instance
        return instance.running_since_s if isinstance(instance, Watched) else None

    async def load(self) -> None:
        """Load and warm up; raises whatever the backend or a configured warm-up raises, nothing is held then."""
        instance, self.run_s = await self._thread.call(self._load_and_warm)
        self._executor = Executor(self.source.config, instance, self._load_again, labels=self._labels)
        self.reason = ""

    def submit(
        self,
        items: Sequence[WorkItem],
        deliver: Deliver,
        done: Callable[[Execution | Failure[Execution]], None],
    ) -> None:
        """Execute in its thread. In the loop, `deliver` is told what comes before the rest, and `done` all of it."""
        executor, thread, num_items = self._executor, self._thread, len(items)
        assert executor is not None

        def deliver_early(some: Sequence[WorkItem], outcomes: Sequence[Outcome]) -> None:
            if len(some) < num_items:
                thread.tell(lambda: deliver(some, outcomes))

        thread.submit(lambda: executor.run(items, deliver_early), done)

    def run_here(self, items: Sequence[WorkItem]) -> Execution:
        """Execute now, in the calling thread."""
        assert self._executor is not None
        return self._executor.run(items)

    def revive(self, on_loaded: Callable[[], None]) -> bool:
        """Load the instance again in its thread if it died; False when it lives."""
        executor = self._executor
        if executor is None or executor.instance is not None or self._thread.is_busy:
            return False
        self._thread.submit(executor.ensure_loaded, lambda outcome: self._revived(outcome, on_loaded))
        return True

    def _revived(self, outcome: object, on_loaded: Callable[[], None]) -> None:
        if outcome is not None:
            error = outcome.error if isinstance(outcome, Failure) else outcome
            log.error("instance-not-loaded-again", model=self.source.config.name, error=str(error))
        on_loaded()

    def replace(self, on_loaded: Callable[[], None]) -> None:
        """Its thread hangs in a job: leave it alone, and load a new instance in a new thread."""
        self._executor = None
        self._thread.abandon()
        self._thread = JobThread(self._thread_name())
        self._reloading = asyncio.get_running_loop().create_task(self._keep_loading(on_loaded))

    async def close(self) -> None:
        """Free the instance. A job that still runs is left to the end of the process."""
        if self._reloading is not None:
            self._reloading.cancel()
        executor, self._executor = self._executor, None
        if executor is not None and not self._thread.is_busy:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._thread.call(executor.close)
            except Exception as e:  # noqa: BLE001 - a backend that fails to close must not stop the others
                log.warning("instance-not-closed", model=self.source.config.name, error=str(e) or type(e).__name__)
        self._thread.close()

    async def _keep_loading(self, on_loaded: Callable[[], None]) -> None:
        backoff, name = Backoff(RELOAD_BACKOFF_S), self.source.config.name
        while self._executor is None:
            try:
                await self.load()
            except Exception as e:  # noqa: BLE001 - whatever a backend raises while loading is the reason shown
                self.reason = str(e) or type(e).__name__
                pause_s = backoff.pause_s()
                log.error("instance-not-loaded-again", model=name, error=self.reason, again_in_s=pause_s)
                await asyncio.sleep(pause_s)
            else:
                log.info("instance-loaded-again", model=name, version=self.source.version)
        on_loaded()

    def _load_again(self) -> ModelInstance:
        log.warning("instance-died", model=self.source.config.name, version=self.source.version)
        return Watched(self._load(self.source))

    def _load_and_warm(self) -> tuple[ModelInstance, float | None]:
        self._labels = read_labels(self.source.model_dir, self.source.triton_config)
        instance = self._load(self.source)
        try:
            run_s = warm_up(instance, self.source)
        except BaseException:
            instance.close()
            raise
        return Watched(instance), run_s

    def _thread_name(self) -> str:
        source = self.source
        return f"{source.config.name}-{source.version}-{source.index}"


def warm_up(instance: ModelInstance, source: InstanceSource) -> float | None:
    """Run the configured warm-up, or a row of zeros; seconds of the shortest run, if any says something.

    A model need not like zeros: only a configured warm-up that fails makes the load fail. Request-wise models get
    no zeros, because their code counts and checks its requests.
    """
    config = source.config
    runs = configured_runs(config, source.triton_config, source.model_dir)
    if instance.is_request_wise:
        for run in runs:
            for _ in range(run.count):
                _run_request(instance, run.inputs, config)
        return None
    for run in runs:
        for _ in range(run.count):
            instance.run(run.inputs, [o.name for o in config.outputs])
    return _measure(instance, config)


def _measure(instance: ModelInstance, config: ModelConfig) -> float | None:
    zeros, outputs = zero_run(config).inputs, [o.name for o in config.outputs]
    shortest_s: float | None = None
    try:
        for done in range(NUM_MEASURES):
            started_s = time.perf_counter()
            instance.run(zeros, outputs)
            took_s = time.perf_counter() - started_s
            shortest_s = took_s if shortest_s is None else min(shortest_s, took_s)
            if done and shortest_s > MEASURE_BELOW_S:
                break
    except Exception as e:  # noqa: BLE001 - zeros were our idea, not the caller's
        log.info("zeros-refused", model=config.name, error=str(e))
        return None
    return shortest_s


def _run_request(instance: ModelInstance, inputs: Mapping[str, Array], config: ModelConfig) -> None:
    names = tuple(o.name for o in config.outputs)
    (result,) = instance.run_requests([InstanceRequest(inputs, names, request_id="warmup")])
    if isinstance(result, Exception):
        raise result
