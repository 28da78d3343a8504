"""`max_queue_size` is exact, whatever the timing (O-09): one running, three queued, the rest refused at once."""

import heapq

import pytest

from contract.errors import QueueFull
from contract.model_config import DynamicBatching, QueuePolicy
from tests.support.batcher_kit import make_config, make_item
from workers.batcher import Batcher


class OneInstance:
    """A worker's use of the batcher on a fake clock: one instance, take after each offer and each execution."""

    def __init__(self, batcher: Batcher, run_s: float) -> None:
        self.batcher, self.run_s = batcher, run_s
        self.answered: list[tuple[float, int]] = []
        self.refused: list[tuple[float, int, object]] = []
        self.max_pending = 0
        self._events: list[tuple[float, int, int | None]] = []
        self._is_idle = True

    def send(self, at_s: float, number: int) -> None:
        heapq.heappush(self._events, (at_s, number, number))

    def play(self) -> None:
        while self._events:
            now_s, order, number = heapq.heappop(self._events)
            if number is None:
                self.answered.append((now_s, order))
                self._is_idle = True
            elif error := self.batcher.offer(make_item(number, enqueued_s=now_s), now_s):
                self.refused.append((now_s, number, error))
            if self._is_idle and (batch := self.batcher.take(now_s)):
                self._is_idle = False
                for item in batch.items:
                    heapq.heappush(self._events, (now_s + self.run_s, item.key[1], None))
            self.max_pending = max(self.max_pending, self.batcher.num_pending)


@pytest.mark.parametrize(("gap_s", "last_accepted"), [(0.0, [0, 1, 2, 3]), (0.01, [0, 1, 2, 3])])
def test_one_runs_three_wait_and_the_rest_is_refused_at_once(gap_s, last_accepted):
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=3))
    worker = OneInstance(Batcher(make_config(1, batching)), run_s=0.5)
    for number in range(10):
        worker.send(number * gap_s, number)
    worker.play()
    assert [number for _, number in worker.answered] == last_accepted
    assert [(at_s, number) for at_s, number, _ in worker.refused] == [(n * gap_s, n) for n in range(4, 10)]
    assert {type(error) for *_, error in worker.refused} == {QueueFull}
    assert worker.max_pending == 3
    assert worker.batcher.num_pending == 0


def test_with_slow_arrivals_only_those_that_meet_a_full_queue_are_refused():
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=3))
    worker = OneInstance(Batcher(make_config(1, batching)), run_s=0.5)
    for number in range(10):
        worker.send(number * 0.2, number)
    worker.play()
    # Executions end every 0.5 s, so of the five that come in a second two find room; the queue starts out empty.
    assert [number for _, number in worker.answered] == [0, 1, 2, 3, 4, 5, 8]
    assert [number for _, number, _ in worker.refused] == [6, 7, 9]
    assert worker.batcher.num_pending == 0
