"""Counters of one model version on one worker, as Triton counts them. Data and arithmetic only."""

from __future__ import annotations

from collections import Counter

from contract.model_config import ModelStats
from workers.instance import Execution


class VersionCounters:
    """What happened since the worker started."""

    __slots__ = (
        "compute_input_us",
        "compute_output_us",
        "infer_us",
        "last_unix_ms",
        "num_executions",
        "num_failed",
        "num_inferences",
        "num_success",
        "queue_us",
        "rows",
    )

    def __init__(self) -> None:
        self.num_success = 0
        self.num_failed = 0
        self.num_inferences = 0
        self.num_executions = 0
        self.queue_us = 0
        self.compute_input_us = 0
        self.infer_us = 0
        self.compute_output_us = 0
        self.last_unix_ms = 0
        self.rows: Counter[int] = Counter()

    def add_execution(self, execution: Execution, now_ms: int) -> None:
        """Executions of one micro-batch, failed ones included."""
        self.num_executions += len(execution.rows_per_execution)
        self.rows.update(execution.rows_per_execution)
        self.compute_input_us += execution.input_us
        self.infer_us += execution.infer_us
        self.compute_output_us += execution.output_us
        self.last_unix_ms = now_ms

    def add_block(
        self, rows: int, num_requests: int, queue_us: int, times_us: tuple[int, int, int], now_ms: int
    ) -> None:
        """One execution of blocks; `times_us` are those of input, inference and output."""
        self.num_executions += 1
        self.rows[rows] += 1
        self.num_success += num_requests
        self.num_inferences += rows
        self.queue_us += queue_us
        self.compute_input_us += times_us[0]
        self.infer_us += times_us[1]
        self.compute_output_us += times_us[2]
        self.last_unix_ms = now_ms

    def to_stats(self, model: str, version: str) -> ModelStats:
        """As heartbeats carry them; gauges are the caller's to fill in."""
        return ModelStats(
            model=model,
            version=version,
            num_success=self.num_success,
            num_failed=self.num_failed,
            num_inferences=self.num_inferences,
            num_executions=self.num_executions,
            queue_us=self.queue_us,
            compute_input_us=self.compute_input_us,
            compute_infer_us=self.infer_us,
            compute_output_us=self.compute_output_us,
            last_inference_unix_ms=self.last_unix_ms,
            rows_per_execution=dict(self.rows),
        )
