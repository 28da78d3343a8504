import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contract.errors import DeadlineExceeded, QueueFull, QueueTimeout
from contract.model_config import DynamicBatching, ModelConfig, QueuePolicy, TensorSpec
from tests.support.batcher_kit import make_config, make_item
from workers.batcher import Batcher
from workers.items import WorkItem
from workers.queueing import MAX_STALE

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    default_timeout_us=st.sampled_from([0, 20_000, 100_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 2, 6]),
)
batchings = st.none() | st.builds(
    DynamicBatching,
    preferred_batch_size=st.sampled_from([(), (4,), (2, 6)]),
    max_queue_delay_us=st.sampled_from([0, 30_000]),
    preserve_ordering=st.booleans(),
    priority_levels=st.sampled_from([0, 2]),
    default_priority_level=st.just(2),
    default_queue_policy=policies,
    priority_queue_policy=st.dictionaries(st.sampled_from([1, 2]), policies),
)


@st.composite
def configs(draw) -> ModelConfig:
    spec = TensorSpec("IN", "FP32", (-1,), is_ragged=draw(st.booleans()))
    return make_config(
        draw(st.sampled_from([0, 1, 4, 8])), draw(batchings), inputs=(spec,), may_retry=draw(st.booleans())
    )


class AnyInterleaving(RuleBasedStateMachine):
    """Whatever the worker does in whatever order: every accepted request leaves once, and never wrongly."""

    @initialize(config=configs())
    def start(self, config: ModelConfig) -> None:
        self.config, self.batcher = config, Batcher(config)
        self.now_s, self.num_sent = 0.0, 0
        self.waiting: dict[int, WorkItem] = {}
        self.running: list[WorkItem] = []

    @rule(
        rows=st.integers(1, 4),
        width=st.integers(1, 3),
        priority=st.integers(0, 3),
        life_s=st.sampled_from([0.05, 0.2, 10.0]),
        timeout_us=st.sampled_from([0, 10_000]),
        is_alone=st.booleans(),
    )
    def offer(self, rows, width, priority, life_s, timeout_us, is_alone) -> None:
        self.num_sent += 1
        if self.config.max_batch_size < 2:
            rows = 1
        item = make_item(
            self.num_sent,
            {"IN": np.zeros((rows, width), np.float32)},
            rows=rows,
            priority=priority,
            queue_timeout_us=timeout_us,
            must_run_alone=is_alone,
            enqueued_s=self.now_s,
            deadline_s=self.now_s + life_s,
        )
        error = self.batcher.offer(item, self.now_s)
        if error is None:
            self.waiting[self.num_sent] = item
        else:
            assert isinstance(error, QueueFull)

    @rule(num_idle=st.integers(0, 2))
    def take(self, num_idle: int) -> None:
        batch = self.batcher.take(self.now_s, num_idle)
        for item, _ in self.batcher.expire(self.now_s):
            self.leaves(item)
        if batch is None:
            return
        assert num_idle
        assert batch.items
        assert not {*batch.items} - {*self.waiting.values()}
        assert batch.rows == sum(item.rows for item in batch.items) <= max(1, self.config.max_batch_size)
        assert len({item.batch_key for item in batch.items}) == 1
        assert all(item.deadline_s > self.now_s for item in batch.items)
        assert len(batch.items) == 1 or not any(item.must_run_alone for item in batch.items)
        first = min(self.waiting.values(), key=lambda item: (item.rank, item.arrival))
        if self.config.dynamic_batching and self.config.dynamic_batching.preserve_ordering:
            assert batch.items[0] is first
            assert [item.arrival for item in batch.items if item.rank == first.rank] == sorted(
                item.arrival for item in self.waiting.values() if item.rank == first.rank
            )[: sum(item.rank == first.rank for item in batch.items)]
        assert min(item.rank for item in batch.items) == first.rank
        for item in batch.items:
            self.leaves(item)
            self.running.append(item)

    @rule()
    def run_again(self) -> None:
        """The worker gives an item back: its mate hung."""
        if self.running:
            item = self.running.pop()
            item.must_run_alone = True
            if self.batcher.offer(item, self.now_s) is None:
                self.waiting[item.key[1]] = item

    @rule()
    def expire(self) -> None:
        for item, error in self.batcher.expire(self.now_s):
            self.leaves(item)
            if isinstance(error, DeadlineExceeded):
                assert item.deadline_s <= self.now_s
            else:
                assert isinstance(error, QueueTimeout)
                assert item.deadline_s > item.enqueued_s
        assert all(item.deadline_s > self.now_s for item in self.waiting.values())

    @rule(number=st.integers(1, 30))
    def cancel(self, number: int) -> None:
        for item in self.batcher.cancel(("gw", number)):
            assert item.is_cancelled
            self.leaves(item)

    @rule()
    def hand_back(self) -> None:
        for item in self.batcher.hand_back():
            self.leaves(item)
        for item, _ in self.batcher.expire(self.now_s):
            self.leaves(item)
        assert not self.waiting

    @rule(pause_s=st.sampled_from([0.001, 0.02, 0.1, 1.0]))
    def time_passes(self, pause_s: float) -> None:
        self.now_s += pause_s

    @rule()
    def sleep_until_the_next_event(self) -> None:
        at_s = self.batcher.next_event_s(self.now_s)
        if self.waiting:
            assert at_s is not None
            assert at_s <= max(self.now_s, min(item.deadline_s for item in self.waiting.values()))
            self.now_s = max(self.now_s, at_s)

    @rule()
    def an_idle_worker_runs_dry(self) -> None:
        """Take while there is something, sleep in between: ends, and leaves nothing behind."""
        for _ in range(4 * len(self.waiting) + 4):
            self.take(1)
            self.expire()
            if not self.waiting:
                break
            self.sleep_until_the_next_event()
        assert not self.waiting
        assert self.batcher.next_event_s(self.now_s) is None

    @invariant()
    def counts_agree(self) -> None:
        batcher = self.batcher
        told_later = [item for item, _ in batcher._ended]
        assert batcher.num_pending == len(self.waiting) - len(told_later)
        assert sum(line.rows for line in batcher._lines.values()) == sum(
            i.rows for i in self.waiting.values() if i not in told_later
        )
        assert len(batcher._alarms._heap) <= 2 * batcher.num_pending + MAX_STALE + 1
        assert sum(batcher._num_at_level.values()) == batcher.num_pending
        assert all(self.waiting[item.key[1]].is_waiting for line in batcher._lines.values() for item in line)

    def leaves(self, item: WorkItem) -> None:
        assert self.waiting.pop(item.key[1]) is item
        assert not item.is_waiting


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
