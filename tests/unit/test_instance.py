import numpy as np
import pytest

from contract.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    HeadraceError,
    InstanceDied,
    InvalidInput,
    ModelFailed,
    ModelNotReady,
    PoisonRequest,
)
from contract.model_config import TensorSpec
from contract.tensors import to_array
from tests.support.batcher_kit import make_config, make_item
from workers.instance import Executor
from workers.items import Answer, Outcome

POISON = 666
CRASH = 999
HANG = 998


class Identity:
    """Gives back its input; rows of 666, 999, 998 make it raise, die, hang. Stacked."""

    is_request_wise = False
    holds_process = True

    def __init__(self, clock=None) -> None:
        self.executions: list[list[int]] = []
        self.clock = clock
        self.is_dead = self.is_closed = False

    def run(self, inputs, outputs):
        assert not self.is_dead
        self.note(inputs["IN"][:, 0])
        return {"OUT": inputs["IN"]}

    def note(self, values) -> None:
        numbers = [int(n) for n in values]
        self.executions.append(numbers)
        if self.clock is not None:
            self.clock.now_s += 1.0
        if CRASH in numbers or HANG in numbers:
            self.is_dead = True
            raise InstanceDied("killed by signal 9") if CRASH in numbers else ExecutionTimeout("60 s are over")
        if POISON in numbers:
            raise ValueError("row 666")

    def close(self) -> None:
        self.is_closed = True


class RequestWise(Identity):
    is_request_wise = True

    def run_requests(self, requests):
        self.requests = requests
        self.note([r.inputs["IN"][0, 0] for r in requests])
        return [{"OUT": r.inputs["IN"]} for r in requests]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """An executor, every instance it had, and what was delivered."""

    def __init__(self, cls=Identity, **fields) -> None:
        self.clock = Clock()
        self.cls = cls
        self.instances = [cls(self.clock)]
        self.delivered: list[int] = []
        self.executor = Executor(make_config(64, **fields), self.instances[0], self.reload, self.clock)

    def reload(self):
        self.instances.append(self.cls(self.clock))
        return self.instances[-1]

    def run(self, *numbers: int, **fields) -> list[Outcome]:
        return self.run_items([make_item(n, **fields) for n in numbers])

    def run_items(self, items) -> list[Outcome]:
        self.execution = self.executor.run(items, self.deliver)
        assert sorted(self.delivered) == sorted(item.key[1] for item in items)
        return self.execution.outcomes

    def deliver(self, items, outcomes) -> None:
        assert len(items) == len(outcomes)
        self.delivered += [item.key[1] for item in items]

    @property
    def executions(self) -> list[list[int]]:
        return [numbers for instance in self.instances for numbers in instance.executions]


def value(outcome: Outcome) -> object:
    """First number of an answer, or the class of an error."""
    if isinstance(outcome, HeadraceError):
        return type(outcome)
    return int(to_array(outcome.layout.tensors[0], outcome.data[0])[0, 0])


def values(outcomes: list[Outcome]) -> list[object]:
    return [value(outcome) for outcome in outcomes]


@pytest.mark.parametrize("cls", [Identity, RequestWise])
def test_everyone_gets_its_own_answer_of_one_execution(cls):
    bench = Bench(cls)
    assert values(bench.run(1, 2, 3)) == [1, 2, 3]
    assert bench.executions == [[1, 2, 3]]
    assert bench.execution.rows_per_execution == [3]
    assert bench.executor.instance is bench.instances[0]


def test_an_answer_tells_its_queue_time_from_admission_its_compute_time_and_the_rows_it_ran_with():
    (answer, _) = Bench().run(1, 2, enqueued_s=99.5, admitted_s=99.0)
    assert isinstance(answer, Answer)
    assert (answer.queue_us, answer.compute_us, answer.batch_rows) == (1_000_000, 1_000_000, 2)


@pytest.mark.parametrize("cls", [Identity, RequestWise])
@pytest.mark.parametrize("place", range(8))
def test_a_row_that_fails_fails_alone(cls, place):
    bench = Bench(cls)
    numbers = [1, 2, 3, 4, 5, 6, 7]
    numbers.insert(place, POISON)
    assert values(bench.run(*numbers)) == [ModelFailed if n == POISON else n for n in numbers]
    assert len(bench.executions) <= 1 + 2 * 3


def test_the_guilty_ones_error_names_what_the_model_raised():
    (error,) = Bench().run(POISON)
    assert isinstance(error, ModelFailed)
    assert "ValueError: row 666" in error.message


def test_a_model_that_fails_always_takes_a_bounded_number_of_executions():
    bench = Bench()
    assert values(bench.run(*[POISON] * 16)) == [ModelFailed] * 16
    assert len(bench.executions) == 2 * 16 - 1


def test_malformed_bytes_fail_alone_before_anything_runs():
    bench = Bench(inputs=(TensorSpec("IN", "FP32", (-1,)),))
    items = [make_item(n) for n in range(4)]
    items[2].data = [b"123"]
    assert values(bench.run_items(items)) == [0, 1, InvalidInput, 3]
    assert bench.executions == [[0, 1], [3]]


def test_an_answer_with_wrong_rows_is_the_models_failure():
    bench = Bench()
    bench.instances[0].run = lambda inputs, outputs: {"OUT": np.zeros((9, 2), np.float32)}
    assert values(bench.run(1, 2)) == [ModelFailed, ModelFailed]


def test_only_the_wanted_outputs_are_asked_for():
    bench = Bench()
    seen = []
    bench.instances[0].run = lambda inputs, outputs: seen.append(tuple(outputs)) or {"OUT": inputs["IN"]}
    bench.run_items([make_item(1)])
    bench.delivered.clear()
    bench.run_items([make_item(1, outputs=("OUT",))])
    assert seen == [("OUT",), ("OUT",)]


class TestRequestWise:
    def test_a_request_comes_with_all_it_carried(self):
        bench = Bench(RequestWise)
        bench.run(1, request_id="ours", caller_id="abc", parameters={"k": 1}, queue_timeout_us=7)
        (request,) = bench.instances[0].requests
        assert (request.request_id, request.parameters, request.timeout_us) == ("abc", {"k": 1}, 7)
        assert request.outputs == ()

    def test_an_answer_may_lack_outputs_that_nobody_asked_for(self):
        both = (TensorSpec("OUT", "FP32", (2,)), TensorSpec("EXTRA", "FP32", (2,)))
        bench = Bench(RequestWise, outputs=both)
        assert values(bench.run_items([make_item(1), make_item(2, outputs=("EXTRA",))])) == [1, ModelFailed]

    def test_an_error_of_one_request_is_its_own_without_another_execution(self):
        bench = Bench(RequestWise)
        bench.instances[0].run_requests = lambda rs: [{"OUT": rs[0].inputs["IN"]}, ModelFailed("this one")]
        assert values(bench.run(1, 2)) == [1, ModelFailed]

    def test_a_malformed_output_of_one_request_is_its_own(self):
        bench = Bench(RequestWise)
        bench.instances[0].run_requests = lambda rs: [{"OUT": rs[0].inputs["IN"]}, {"OUT": "nonsense"}]
        assert values(bench.run(1, 2)) == [1, ModelFailed]

    def test_too_few_results_are_a_failure(self):
        bench = Bench(RequestWise)
        bench.instances[0].run_requests = lambda rs: []
        assert values(bench.run(1, 2)) == [ModelFailed, ModelFailed]


class TestDeadInstances:
    def test_the_one_that_kills_is_found_alone_and_its_mates_get_their_answers(self):
        bench = Bench()
        assert values(bench.run(1, CRASH, 3)) == [1, PoisonRequest, 3]
        assert bench.executions == [[1, CRASH, 3], [1], [CRASH], [3]]
        assert bench.execution.num_reloads == 2

    def test_a_request_that_dies_alone_is_tried_once_more(self):
        bench = Bench()
        assert values(bench.run(CRASH)) == [PoisonRequest]
        assert bench.executions == [[CRASH], [CRASH]]

    def test_after_an_innocent_death_everyone_is_answered(self):
        bench = Bench()
        first = bench.instances[0]

        def die_once(inputs, outputs):
            raise InstanceDied("out of memory")

        first.run = die_once
        assert values(bench.run(1, 2)) == [1, 2]

    def test_a_model_that_runs_nothing_twice_tells_everyone(self):
        bench = Bench(may_retry=False)
        assert values(bench.run(CRASH)) == [InstanceDied]
        assert bench.executions == [[CRASH]]

    def test_a_hang_is_the_guilty_ones_only_and_alone_it_is_not_tried_again(self):
        bench = Bench()
        assert values(bench.run(1, HANG, 3)) == [1, ExecutionTimeout, 3]
        assert bench.executions == [[1, HANG, 3], [1], [HANG], [3]]
        bench.delivered.clear()
        assert values(bench.run(HANG)) == [ExecutionTimeout]
        assert bench.executions[-1] == [HANG]

    def test_answers_of_mates_are_delivered_before_the_guilty_ends(self):
        bench = Bench()
        outcomes = []
        bench.executor.run(
            [make_item(n) for n in (1, HANG, 3)], lambda items, got: outcomes.append(len(bench.executions))
        )
        assert outcomes == [2, 3, 4]

    def test_an_instance_that_died_last_is_loaded_again_when_asked(self):
        bench = Bench()
        bench.run(HANG)
        assert bench.executor.instance is None
        assert bench.executor.ensure_loaded() is None
        assert bench.executor.instance is bench.instances[-1]
        assert bench.executor.ensure_loaded() is None
        assert len(bench.instances) == 2

    def test_an_instance_that_can_not_be_loaded_again_is_tried_once_and_told(self):
        bench = Bench()
        num_tries = []

        def reload():
            num_tries.append(1)
            raise RuntimeError("no memory")

        bench.executor._reload = reload
        outcomes = bench.run(1, CRASH, 3)
        assert values(outcomes) == [ModelNotReady] * 3
        assert "no memory" in str(outcomes[0])
        assert len(num_tries) == 1
        bench.executor._reload = bench.reload
        bench.delivered.clear()
        assert values(bench.run(4)) == [4]


class TestBeforeEachExecution:
    def test_a_cancelled_request_is_not_executed(self):
        bench = Bench()
        items = [make_item(1), make_item(2)]
        items[0].is_cancelled = True
        assert values(bench.run_items(items)) == [Cancelled, 2]
        assert bench.executions == [[2]]

    def test_a_deadline_that_passes_between_retries_ends_the_request(self):
        bench = Bench()
        items = [make_item(1), make_item(POISON), make_item(3, deadline_s=100.5), make_item(4)]
        assert values(bench.run_items(items)) == [1, ModelFailed, DeadlineExceeded, 4]
        assert [3] not in bench.executions

    def test_nothing_at_all_is_fine(self):
        assert Bench().run() == []


def test_closing_frees_the_instance_once():
    bench = Bench()
    bench.executor.close()
    bench.executor.close()
    assert bench.instances[0].is_closed
    assert bench.executor.instance is None


def test_an_item_is_settled_once():
    told = []
    item = make_item(1, on_settled=lambda item, outcome: told.append(outcome))
    first, second = Cancelled("left"), ModelFailed("late")
    assert item.settle(first)
    assert not item.settle(second)
    assert told == [first]
