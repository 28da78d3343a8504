"""Blocks through a tiny model and out again, in the event loop. What does not go through comes back for other ways.

The whole cost per request here is its ResultHead; everything else is per message or per execution.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from contract.messages import Layout, ResultHead
from contract.model_config import ModelConfig
from contract.tensors import Array
from workers.backends.base import ModelInstance
from workers.blocks import Block, Shapes, join_inputs, join_outputs, result_layout, take_joinable
from workers.counters import VersionCounters
from workers.desk import Desk
from workers.replies import Run

log = structlog.get_logger()


class Timing(NamedTuple):
    """What each result of an execution says about it."""

    started_unix_us: int
    compute_us: int
    batch_rows: int


class BlockRunner:
    """Runs blocks of one model version."""

    def __init__(self, config: ModelConfig, version: str, desk: Desk, counters: VersionCounters) -> None:
        self._config = config
        self._version = version
        self._desk = desk
        self._counters = counters
        self._names = [spec.name for spec in config.outputs]
        self._layouts: dict[Shapes, Layout] = {}

    def run(self, blocks: Sequence[Block], instance: ModelInstance) -> list[Block]:
        """Execute and put the answers into the outbox, unsent; what comes back (expired, failed) must go one by one."""
        rest: list[Block] = []
        at = 0
        while at < len(blocks):
            num = take_joinable(blocks[at:], self._config.max_batch_size)
            group, at = blocks[at : at + num], at + num
            now_ms = self._desk.clock.now_ms(self._desk.now_s())
            if min([b.first_deadline_ms for b in group]) <= now_ms or not self._run_group(group, instance):
                rest.extend(group)
        return rest

    def _run_group(self, group: Sequence[Block], instance: ModelInstance) -> bool:
        started_s = time.perf_counter()
        started_unix_us = int((self._desk.now_s() + self._desk.clock.offset_s) * 1e6)
        num_requests = sum([len(b.heads) for b in group])
        rows = group[0].checked.rows
        try:
            inputs = join_inputs(group)
            ready_s = time.perf_counter()
            outputs: dict[str, Array] = instance.run(inputs, self._names)
            ran_s = time.perf_counter()
            shapes, body = join_outputs(self._config, outputs, num_requests, rows)
        except Exception as e:  # noqa: BLE001 - a model may raise anything; the ordinary way finds the guilty request
            log.debug("block-failed", model=self._config.name, error=str(e))
            return False
        ended_s = time.perf_counter()
        timing = Timing(started_unix_us, int((ended_s - started_s) * 1e6), num_requests * rows)
        waits_us = self._answer(group, result_layout(self._layouts, self._config, shapes), body, timing)
        times_us = (int((ready_s - started_s) * 1e6), int((ran_s - ready_s) * 1e6), int((ended_s - ran_s) * 1e6))
        self._counters.add_block(timing.batch_rows, waits_us, times_us, started_unix_us // 1000)
        return True

    def _answer(self, group: Sequence[Block], layout: Layout, body: bytes, timing: Timing) -> list[int]:
        """Put the results into the outbox; their queue times."""
        outbox, clock, destination_of = self._desk.outbox, self._desk.clock, (self._config.name, self._version)
        started_us, compute_us, batch_rows = timing.started_unix_us, timing.compute_us, timing.batch_rows
        size = len(body) // sum([len(b.heads) for b in group])
        view, at = memoryview(body), 0
        waits_us: list[int] = []
        for block in group:
            results = []
            for head in block.heads:
                queue_us = max(0, started_us - head.admitted_unix_us)
                waits_us.append(queue_us)
                results.append(ResultHead(id=head.id, queue_us=queue_us, compute_us=compute_us, batch_rows=batch_rows))
            end = at + size * len(results)
            run = Run(
                block.hand, block.rows, clock.from_wire_ms(block.last_deadline_ms), results, layout, (view[at:end],)
            )
            outbox.put((block.message.reply, *destination_of), run)
            at = end
        return waits_us
