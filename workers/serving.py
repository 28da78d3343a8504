"""The serving loop of one model version: waiting requests to idle instances, outcomes to their requests. No broker.

    offer -> Batcher -> kick: take while an instance is idle -> execute (thread, or here if tiny) -> settle
                          `-> expire; sleep until the next event

The next micro-batch forms while one runs. A tiny model runs in the event loop, because a thread hop costs more than
the execution; when it proves slower than measured it moves to its threads for good.

Invariants: a micro-batch starts only while the gate is open, except for the suspect that closed it; every item taken
from the batcher is settled (tests/integration/test_worker_serving.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Sequence
from typing import Final

import structlog

from contract.errors import Cancelled, ExecutionTimeout, HeadraceError, InternalError
from contract.model_config import ModelConfig, ModelStats
from workers.ahead import Reach
from workers.batcher import Batcher
from workers.blockrun import BlockRunner
from workers.blocks import Block, is_block_model
from workers.failures import log_failure
from workers.host import Host
from workers.inhand import InHand
from workers.instance import Execution
from workers.items import Key, Outcome, WorkItem
from workers.jobs import Job, Jobs, Pace
from workers.seats import Seat
from workers.text.encode import TextEncoder
from workers.text.texts import Texts
from workers.threads import Failure

INLINE_BUDGET_S: Final = 0.001
"""So long may a tiny model keep the event loop before others get a turn."""
PROCESS_GRACE_S: Final = 5.0
"""An instance in a process of its own is ended by its backend; the watchdog here only looks whether that worked."""

log = structlog.get_logger()


class VersionServing:
    """One model version's queue and instances."""

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        seats: Sequence[Seat],
        host: Host,
        as_items: Callable[[Block, str], list[WorkItem]],
        *,
        encoder: TextEncoder | None = None,
        limit: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        """`limit(max_rows)` is told how many rows may be in hand, None where the model's window says it."""
        self.version = version
        self.config = config
        self.seats = list(seats)
        self.counters = host.desk.counters_of(config.name, version)
        self._host = host
        self._desk = host.desk
        self._as_items = as_items
        self._loop = asyncio.get_running_loop()
        self._batcher = Batcher(config)
        self._blocks: list[Block] = []
        self._is_ordered = config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering
        self._texts = None if encoder is None else Texts(encoder, self._settle, is_ordered=self._is_ordered)
        self._is_block_model = is_block_model(config)
        self._block_runner = BlockRunner(config, version, host.desk, self.counters)
        self._jobs = Jobs(is_ordered=self._is_ordered)
        self._pace = Pace(self.seats[0].inline_run_s if self.seats else None, host.inline_below_s)
        self._reach = Reach(self._loop, len(self.seats), config.max_batch_size, limit)
        self._is_kick_due = False
        self._timer: asyncio.TimerHandle | None = None
        host.gate.on_open(self.kick_soon)

    # -------- what intake sees
    @property
    def takes_blocks(self) -> bool:
        """Whether plain messages should come as one Block now."""
        return self._pace.is_tiny and self._is_block_model and not self._batcher.num_pending and self._host.gate.is_open

    def offer(self, item: WorkItem) -> None:
        """Queue it, its texts tokenised; it is settled later, or at once if the queue refuses it."""
        if self._texts is None:
            self._queue(item)
        else:
            self._texts.take(item, self._queue)

    def _queue(self, item: WorkItem) -> None:
        error = self._batcher.offer(item, self._desk.now_s())
        if error is not None:
            self._settle(item, error)
        elif self.config.is_eager:
            self.kick()
        else:
            self.kick_soon()

    def offer_block(self, block: Block) -> None:
        """Run it at the end of this tick."""
        self._blocks.append(block)
        self.kick_soon()

    def offer_suspect(self, item: WorkItem) -> None:
        """Run it alone, with notes, when nothing else runs."""
        if self._texts is None:
            self._host.suspect(item, self.run_alone)
        else:
            self._texts.take(item, lambda ready: self._host.suspect(ready, self.run_alone))

    def forget(self, keys: Collection[Key]) -> None:
        """These have ended by another hand: none of them is started any more."""
        self._batcher.cancel(*keys)

    # -------- the loop
    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs."""
        return not (self._jobs or self._blocks or self._batcher.num_pending or self._num_texts)

    @property
    def _num_texts(self) -> int:
        return 0 if self._texts is None else self._texts.num_open

    def kick_soon(self) -> None:
        """Look for work at the end of this tick, or of the broker's read if it is in one."""
        if not self._is_kick_due:
            self._is_kick_due = True
            self._desk.transport.at_tick_end(self._kick_due)

    def _kick_due(self) -> None:
        self._is_kick_due = False
        self.kick()

    def kick(self) -> None:
        """Give idle instances work, end what waited too long, and set the alarm for the next time."""
        batcher, now_s = self._batcher, self._desk.now_s()
        if self._blocks:
            self._run_blocks()
            if not batcher.num_pending and self._timer is None:
                return
        until_s = now_s + INLINE_BUDGET_S
        while batcher.num_pending and self._host.gate.is_open:
            idle = [seat for seat in self.seats if seat.is_idle]
            if (batch := batcher.take(now_s, len(idle))) is None:
                break
            self._start(idle[0], batch.items)
            now_s = self._desk.now_s()
            if self._pace.is_tiny and now_s > until_s:
                self.kick_soon()
                break
        for item, error in batcher.expire(now_s):
            self._settle(item, error)
        self._set_alarm(now_s)

    def _set_alarm(self, now_s: float) -> None:
        at_s = self._batcher.next_event_s(now_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            self._timer = self._loop.call_later(max(0.0, at_s - now_s), self.kick)

    def _start(self, seat: Seat, items: Sequence[WorkItem]) -> None:
        if self._pace.is_tiny and seat.instance is not None:
            self._host.gate.enter()
            job = Job(seat, items)
            self._jobs.start(job)
            started_s = time.thread_time()
            self._ended(job, seat.run_here(items))
            self._note_pace(time.thread_time() - started_s)
            return
        self._start_in_thread(seat, items)

    def _start_in_thread(self, seat: Seat, items: Sequence[WorkItem], on_end: Callable[[], None] | None = None) -> None:
        self._host.gate.enter()
        rows = sum([item.rows for item in items])
        job = Job(seat, items, on_end=on_end, rows=rows, started_s=self._desk.now_s())
        self._jobs.start(job)
        self._reach.started(job.rows)
        seat.submit(items, self._deliver, lambda outcome: self._ended(job, outcome))
        job.timer = self._loop.call_later(self._patience_s(seat), self._look_at, job)

    def _deliver(self, items: Sequence[WorkItem], outcomes: Sequence[Outcome]) -> None:
        """Some of a micro-batch have ended while their mates are tried again."""
        if not self._is_ordered:
            for item, outcome in zip(items, outcomes, strict=True):
                self._settle(item, outcome)

    def _ended(self, job: Job, outcome: Execution | Failure[Execution]) -> None:
        self._host.gate.leave()
        if job.timer is not None:
            job.timer.cancel()
            self._reach.ended(job.rows, self._desk.now_s() - job.started_s)
        outcomes: Sequence[Outcome]
        if isinstance(outcome, Failure):
            log.error("executor-failed", model=self.config.name, exc_info=outcome.error)
            outcomes = [InternalError(f"executing model {self.config.name!r} failed in the worker")] * len(job.items)
        else:
            outcomes = outcome.outcomes
            now_ms = self._desk.clock.now_ms(self._desk.now_s())
            for run in outcome.runs:
                self.counters.add_run(*run, now_ms)
        if not job.seat.revive(self.kick_soon) and job.timer is not None:
            self.kick()  # the instance's next micro-batch starts before this one's answers are packed
        self._settle_job(job, outcomes)

    def _settle_job(self, job: Job, outcomes: Sequence[Outcome]) -> None:
        for ended in self._jobs.end(job, outcomes):
            for item, outcome in zip(ended.items, ended.outcomes or (), strict=True):
                self._settle(item, outcome)
            if ended.on_end is not None:
                ended.on_end()

    def _settle(self, item: WorkItem, outcome: Outcome) -> None:
        if not item.settle(outcome):
            return
        if isinstance(outcome, HeadraceError):
            log_failure(item, outcome)
        else:
            self.counters.add_answer(item.rows, outcome.queue_us)

    # -------- tiny models
    def _run_blocks(self) -> None:
        blocks, self._blocks = self._blocks, []
        instance = self.seats[0].instance
        if instance is None or not self._pace.is_tiny or not self._host.gate.is_open or self._batcher.num_pending:
            rest: list[Block] = blocks
        else:
            started_s = time.thread_time()
            rest = self._block_runner.run(blocks, instance)
            self._note_pace((time.thread_time() - started_s) / max(1, len(blocks) - len(rest)))
            self._desk.outbox.flush()
        for block in rest:
            for item in self._as_items(block, self.version):
                self.offer(item)

    def _note_pace(self, took_s: float) -> None:
        """`took_s` is this thread's own time: on a busy machine most of the clock's time may be somebody else's."""
        if self._pace.note(took_s):
            log.info("model-moved-to-threads", model=self.config.name, version=self.version, took_us=int(took_s * 1e6))

    # -------- leaving
    def hand_back(self, keep: Container[InHand] = ()) -> None:
        """What has not started goes to other workers, but for the requests of messages in `keep`, which run here;
        a model that runs nothing twice finishes everything.
        """
        if not self.config.may_retry:
            return
        blocks, self._blocks = self._blocks, []
        waiting = [item for block in blocks for item in self._as_items(block, self.version)]
        for item in [*waiting, *self._batcher.hand_back(keep)]:
            self._desk.hand_back(item)

    async def close(self) -> None:
        """Free the instances."""
        if self._timer is not None:
            self._timer.cancel()
        self._reach.close()
        self._host.gate.off_open(self.kick_soon)
        if self._texts is not None:
            self._texts.close()
        await asyncio.gather(*(seat.close() for seat in self.seats))

    def stats(self) -> ModelStats:
        """Counters and this version's gauges."""
        stats = self.counters.to_stats(self.config.name, self.version)
        stats.num_pending = self._batcher.num_pending + self._num_texts
        stats.num_instances = sum([seat.is_loaded for seat in self.seats])
        stats.num_busy_instances = sum([seat.is_loaded and not seat.is_idle for seat in self.seats])
        return stats

    # -------- suspects
    async def run_alone(self, item: WorkItem) -> None:
        """Run a suspect on an idle instance, whatever the gate says; returns when it has ended."""
        ended = asyncio.Event()
        while not item.is_settled:
            now_s = self._desk.now_s()
            if now_s >= item.deadline_s:
                item.settle(Cancelled("its deadline passed while it waited for an instance"))
                return
            seat = next((seat for seat in self.seats if seat.is_idle), None)
            if seat is not None:
                self._start_in_thread(seat, [item], ended.set)
                await ended.wait()
                return
            await asyncio.sleep(0.05)

    # -------- models that don't return
    def _patience_s(self, seat: Seat) -> float:
        instance = seat.instance
        grace_s = PROCESS_GRACE_S if instance is not None and instance.holds_process else 0.0
        return self.config.max_execution_s + grace_s

    def _look_at(self, job: Job) -> None:
        """A job has taken long: is its present execution over time, or are there just many of them?"""
        now_s, since_s = self._desk.now_s(), job.seat.running_since_s
        patience_s = self._patience_s(job.seat)
        if since_s is None or now_s - since_s < patience_s:
            wait_s = patience_s if since_s is None else since_s + patience_s - now_s
            job.timer = self._loop.call_later(max(0.01, wait_s), self._look_at, job)
            return
        name, limit_s, after_s = self.config.name, self.config.max_execution_s, round(now_s - since_s, 3)
        log.error("execution-over-time", model=name, version=self.version, after_s=after_s)
        self._host.gate.leave()
        self._reach.ended(job.rows, now_s - job.started_s)
        job.seat.replace(self._seat_back)
        error = ExecutionTimeout(f"model {name!r} did not return within its max_execution_s of {limit_s:g} s")
        if len(job.items) > 1 and self.config.may_retry and not self._is_ordered:
            job.items = [item for item in job.items if not self._waits_again(item, now_s)]
        self._settle_job(job, [error] * len(job.items))
        self._host.count_stuck_thread()
        self.kick_soon()

    def _waits_again(self, item: WorkItem, now_s: float) -> bool:
        """A mate of the one that hangs runs again, alone; who hangs alone is told."""
        item.must_run_alone = True
        return not item.is_settled and self._batcher.offer(item, now_s) is None

    def _seat_back(self) -> None:
        self._host.changed()
        self.kick_soon()
