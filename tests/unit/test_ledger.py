"""Workers' counters added up over their deaths."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.messages import WorkerBeat
from contract.model_config import ModelStats
from gateway.ledger import MAX_DEAD, Ledger, add_up
from gateway.registry import Registry


def beat(worker: str, *stats: ModelStats, group: str = "default", started: int = 1) -> WorkerBeat:
    return WorkerBeat(worker, group, started, "0", "host", 1, "serving", [], list(stats))


def counted(num: int, *, model: str = "m", version: str = "1", since: int = 10, **more: Any) -> ModelStats:
    return ModelStats(model, version, num_success=num, since_unix_ms=since, **more)


def test_the_last_word_of_each_live_worker_counts() -> None:
    ledger = Ledger()
    for num in (1, 5):
        ledger.hear(beat("a", counted(num)))
    ledger.hear(beat("b", counted(7)))
    assert ledger.total("default", "m", "1").num_success == 12


def test_what_a_dead_worker_counted_stays() -> None:
    ledger = Ledger()
    ledger.hear(beat("a", counted(5)))
    ledger.bury(beat("a"))
    ledger.hear(beat("b", counted(2, since=20)))
    assert ledger.total("default", "m", "1").num_success == 7


def test_a_worker_that_was_only_frozen_counts_once() -> None:
    ledger = Ledger()
    ledger.hear(beat("a", counted(5)))
    ledger.bury(beat("a"))
    ledger.hear(beat("a", counted(6)))
    assert ledger.total("default", "m", "1").num_success == 6


def test_counters_that_began_anew_in_the_same_worker_add_up() -> None:
    ledger = Ledger()
    ledger.hear(beat("a", counted(5, since=10)))
    ledger.hear(beat("a", counted(1, since=20)))
    assert ledger.total("default", "m", "1").num_success == 6


def test_a_version_that_its_worker_no_longer_tells_keeps_its_count() -> None:
    ledger = Ledger()
    ledger.hear(beat("a", counted(5), counted(3, version="2")))
    ledger.hear(beat("a", counted(3, version="2")))
    assert ledger.total("default", "m", "1").num_success == 5


def test_groups_models_and_versions_are_kept_apart() -> None:
    ledger = Ledger()
    ledger.hear(beat("a", counted(1), counted(2, version="2"), counted(3, model="n")))
    ledger.hear(beat("b", counted(4), group="other"))
    found = [ledger.total(*key).num_success for key in (("default", "m", "2"), ("default", "n", "1"))]
    assert (ledger.total("default", "m", "1").num_success, ledger.total("other", "m", "1").num_success) == (1, 4)
    assert found == [2, 3]


def test_an_unknown_version_has_zeros() -> None:
    assert Ledger().total("default", "m", "1") == ModelStats("m", "1")


def test_many_dead_workers_are_one_sum_and_none_is_lost() -> None:
    ledger = Ledger()
    for number in range(3 * MAX_DEAD):
        told = beat(f"w{number}", counted(1, since=number + 1))
        ledger.hear(told)
        ledger.bury(told)
    assert ledger.total("default", "m", "1").num_success == 3 * MAX_DEAD
    assert len(ledger._accounts["default", "m", "1"].dead) == MAX_DEAD


def test_everything_that_counts_is_added_up() -> None:
    life = ModelStats(
        "m",
        "1",
        num_success=1,
        num_failed=2,
        num_inferences=3,
        num_executions=4,
        queue_us=5,
        compute_input_us=6,
        compute_infer_us=7,
        compute_output_us=8,
        last_inference_unix_ms=100,
        rows_per_execution={1: 2, 4: 2},
        failures={"BACKEND": 2},
        failed_us=9,
        batch_us={1: (1, 2, 3), 4: (4, 5, 6)},
        queue_buckets=(1, 0, 2),
    )
    other = ModelStats("m", "1", last_inference_unix_ms=200, rows_per_execution={4: 1}, batch_us={4: (1, 1, 1)})
    total = add_up([life, other, life])
    assert (total.num_success, total.num_failed, total.num_inferences, total.num_executions) == (2, 4, 6, 8)
    assert (total.queue_us, total.failed_us, total.last_inference_unix_ms) == (10, 18, 200)
    assert (total.compute_input_us, total.compute_infer_us, total.compute_output_us) == (12, 14, 16)
    assert total.rows_per_execution == {1: 4, 4: 5}
    assert total.batch_us == {1: (2, 4, 6), 4: (9, 11, 13)}
    assert (total.failures, total.queue_buckets) == ({"BACKEND": 4}, (2, 0, 4))


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["work", "beat", "die"])), max_size=60)


@given(EVENTS)
def test_a_sum_never_falls_and_is_what_was_told(events: list[tuple[str, str]]) -> None:
    registry, now_s = Registry(), 0.0
    counts = dict.fromkeys("abc", 0)
    lives = dict.fromkeys("abc", 1)
    told = 0
    last_told = dict.fromkeys("abc", 0)
    for name, event in events:
        before = registry.ledger.total("default", "m", "1").num_success
        if event == "work":
            counts[name] += 1
        elif event == "beat":
            worker = f"{name}{lives[name]}"
            registry.on_worker_beat(beat(worker, counted(counts[name], since=lives[name])), now_s)
            told += counts[name] - last_told[name]
            last_told[name] = counts[name]
        else:
            counts[name] = last_told[name] = 0
            lives[name] += 1
            now_s += 10
            registry.sweep(now_s)
        assert registry.ledger.total("default", "m", "1").num_success == told >= before
