"""Runs micro-batches on one model instance and gives every request its own outcome. Blocks; knows no queue or broker.

    run(items) -> [ group ] -> stack -> instance -> split -> an Answer each
                      | failed as a whole: halves, until the guilty request is alone
                      | the instance died or hung: loaded again, then everyone of the group alone

A request's mates thus get their own answers (I2). Bounds: a failing group of n takes at most 2n - 1 executions, about
2 log2 n more per guilty request; a request dies with its instance at most twice and hangs it at most twice, the last
time alone. Deadline and cancel are looked at again before every execution (I4).

Invariants: one outcome per request, in order; only the guilty fail (tests/unit/test_instance.py,
tests/property/test_batcher_instance.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from contract.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    HeadraceError,
    InstanceDied,
    InternalError,
    ModelFailed,
    ModelNotReady,
    PoisonRequest,
)
from contract.messages import Layout
from contract.model_config import ModelConfig
from workers.backends.base import InstanceRequest, ModelInstance, RequestResult
from workers.classify import NO_LABELS, Labels, classify
from workers.collate import split, stack
from workers.counters import ModelRun
from workers.items import Answer, Buffer, Outcome, WorkItem

MAX_DEATHS: Final = 2
"""Deaths of an instance that a request may share; the second one it was alone in, so it is the reason."""


@dataclass(slots=True)
class Execution:
    """What came of one micro-batch; its counts are those of all executions it took."""

    outcomes: list[Outcome]
    """One per request, in order."""
    rows_per_execution: list[int] = field(default_factory=list)
    """Rows of every execution, failed ones included."""
    runs: list[ModelRun] = field(default_factory=list)
    """Those executions that gave an answer."""
    num_reloads: int = 0


Deliver = Callable[[Sequence[WorkItem], Sequence[Outcome]], None]
Part = tuple[Layout, list[Buffer]] | HeadraceError

_UNDECIDED: Final = InternalError("this request was never executed")


def _keep(items: Sequence[WorkItem], outcomes: Sequence[Outcome]) -> None:
    """Outcomes are read from the Execution."""


class Executor:
    """One instance of a model. `run` is called from one thread at a time.

    `reload` loads the instance again after it died; until that works, requests end in ModelNotReady.
    """

    def __init__(
        self,
        config: ModelConfig,
        instance: ModelInstance,
        reload: Callable[[], ModelInstance],
        clock: Callable[[], float] = time.monotonic,
        *,
        labels: Labels = NO_LABELS,
    ) -> None:
        self._config = config
        self._labels = labels
        self._instance: ModelInstance | None = instance
        self._reload = reload
        self._clock = clock
        self._output_names = tuple([spec.name for spec in config.outputs])

    @property
    def instance(self) -> ModelInstance | None:
        """The loaded instance; None after it died and could not be loaded again yet."""
        return self._instance

    def run(self, items: Sequence[WorkItem], deliver: Deliver = _keep) -> Execution:
        """Execute a micro-batch; never raises for a request's, the model's or the instance's fault.

        `deliver` is told outcomes as they come, each request's once, so that nobody waits for a mate's retries.
        An instance that died in the last execution is not loaded again here: see `ensure_loaded`.
        """
        work = _Work(items, deliver)
        while work.groups:
            group = work.next_group(self._clock())
            if not group:
                continue
            failed = self._load_for(work)
            if failed is not None:
                work.finish(group, [failed] * len(group))
                continue
            try:
                work.finish(group, self._execute([items[i] for i in group], work.execution))
            except (InstanceDied, ExecutionTimeout) as e:
                self._instance = None
                work.after_death(group, e, self._config)
            except Exception as e:  # noqa: BLE001 - a model may raise anything; it becomes the guilty one's outcome
                work.after_failure(group, _as_error(e, self._config))
        return work.execution

    def ensure_loaded(self) -> HeadraceError | None:
        """Load the instance again if it died; says why if it can't be. Does nothing while it lives."""
        if self._instance is not None:
            return None
        try:
            self._instance = self._reload()
        except Exception as e:  # noqa: BLE001 - loading runs the model's own code
            name, reason = self._config.name, e.message if isinstance(e, HeadraceError) else repr(e)
            return ModelNotReady(f"model {name!r}: its instance died and could not be loaded again: {reason}")
        return None

    def close(self) -> None:
        """Free the instance."""
        if self._instance is not None:
            self._instance.close()
            self._instance = None

    def _load_for(self, work: _Work) -> HeadraceError | None:
        """One try per micro-batch: a load may take long, and callers wait."""
        if self._instance is None and work.load_error is None:
            work.load_error = self.ensure_loaded()
            work.execution.num_reloads += 1
        return work.load_error

    def _execute(self, items: list[WorkItem], execution: Execution) -> list[Outcome]:
        """One execution of one group. Raises what the instance raises."""
        instance = self._instance
        assert instance is not None
        rows = sum([item.rows for item in items])
        parts: Sequence[Part]
        start_s = self._clock()
        if instance.is_request_wise:
            requests = [self._request(item) for item in items]
            infer_s = self._clock()
            execution.rows_per_execution.append(rows)
            results = instance.run_requests(requests)
            output_s = self._clock()
            parts = self._parts(results, items)
        else:
            arrays = stack(items, self._config)
            infer_s = self._clock()
            execution.rows_per_execution.append(rows)
            outputs = instance.run(arrays, items[0].outputs or self._output_names)
            output_s = self._clock()
            parts = split(outputs, items, self._config)
        if items[0].outputs and any(item.classifications for item in items):  # all of them name the same outputs
            parts = [self._classified(part, item) for part, item in zip(parts, items, strict=True)]
        end_s = self._clock()
        num_answered = len(parts) - sum([isinstance(part, HeadraceError) for part in parts])
        if num_answered:
            times_us = _us(start_s, infer_s), _us(infer_s, output_s), _us(output_s, end_s)
            execution.runs.append(ModelRun(rows, num_answered, times_us))
        compute_us = _us(start_s, end_s)
        return [
            part
            if isinstance(part, HeadraceError)
            else Answer(part[0], part[1], rows, _us(item.admitted_s, start_s), compute_us)
            for item, part in zip(items, parts, strict=True)
        ]

    def _classified(self, part: Part, item: WorkItem) -> Part:
        if isinstance(part, HeadraceError) or not item.classifications:
            return part
        num_classes = dict(zip(item.outputs, item.classifications, strict=True))
        try:
            return classify(*part, num_classes, self._labels, is_batched=self._config.max_batch_size > 0)
        except HeadraceError as e:
            return e

    def _request(self, item: WorkItem) -> InstanceRequest:
        return InstanceRequest(
            inputs=stack([item], self._config),
            outputs=item.outputs,
            request_id=item.caller_id,
            parameters=item.parameters,
            timeout_us=item.queue_timeout_us,
        )

    def _parts(self, results: Sequence[RequestResult], items: list[WorkItem]) -> list[Part]:
        """A request-wise instance isolates requests itself: an error, or an odd output, is one request's only."""
        if len(results) != len(items):
            name = self._config.name
            raise ModelFailed(f"model {name!r} answered {len(results)} results to {len(items)} requests")
        parts: list[Part] = []
        for result, item in zip(results, items, strict=True):
            try:
                parts.append(result if isinstance(result, HeadraceError) else split(result, [item], self._config)[0])
            except Exception as e:  # noqa: BLE001 - outputs of any shape and type come from the model
                parts.append(_as_error(e, self._config))
        return parts


class _Work:
    """The groups of one micro-batch that are still to be run, as indexes into its items, and what came so far."""

    def __init__(self, items: Sequence[WorkItem], deliver: Deliver) -> None:
        self._items = items
        self._deliver = deliver
        self._deaths = [0] * len(items)
        self.groups: list[list[int]] = [list(range(len(items)))] if items else []
        """A stack: the last one is next."""
        self.load_error: HeadraceError | None = None
        self.execution = Execution([_UNDECIDED] * len(items))

    def next_group(self, now_s: float) -> list[int]:
        """The next group without those that were cancelled or whose deadline passed meanwhile."""
        group = []
        for i in self.groups.pop():
            item = self._items[i]
            if item.is_cancelled:
                self.finish([i], [Cancelled(f"model {item.model!r}: cancelled before execution")])
            elif now_s >= item.deadline_s:
                self.finish(
                    [i], [DeadlineExceeded(f"model {item.model!r}: the deadline passed before it was executed")]
                )
            else:
                group.append(i)
        return group

    def finish(self, group: list[int], outcomes: Sequence[Outcome]) -> None:
        for i, outcome in zip(group, outcomes, strict=True):
            self.execution.outcomes[i] = outcome
        self._deliver([self._items[i] for i in group], outcomes)

    def after_failure(self, group: list[int], error: HeadraceError) -> None:
        """Nobody knows whose fault it was: halves, first half first."""
        if len(group) == 1:
            self.finish(group, [error])
            return
        middle = len(group) // 2
        self.groups += [group[middle:], group[:middle]]

    def after_death(self, group: list[int], error: HeadraceError, config: ModelConfig) -> None:
        """Everyone alone, so that one more instance per guilty request is lost, not one per halving."""
        for i in group:
            self._deaths[i] += 1
        if not config.may_retry or (len(group) == 1 and isinstance(error, ExecutionTimeout)):
            self.finish(group, [error] * len(group))
        elif len(group) == 1 and self._deaths[group[0]] >= MAX_DEATHS:
            text = f"model {config.name!r}: its instance died {MAX_DEATHS} times in this request, the last time alone"
            self.finish(group, [PoisonRequest(f"{text}: {error.message}")])
        else:
            self.groups += [[i] for i in reversed(group)]


def _as_error(error: Exception, config: ModelConfig) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return ModelFailed(f"model {config.name!r} raised {type(error).__name__}: {error}")


def _us(start_s: float, end_s: float) -> int:
    return max(0, int((end_s - start_s) * 1e6))
