"""Whatever rows of a micro-batch raise, kill or hang: everyone else gets its own answer, in bounded executions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ExecutionTimeout, HeadraceError, InstanceDied, ModelFailed
from contract.tensors import to_array
from tests.support.batcher_kit import make_config, make_item
from workers.instance import Executor

ERRORS = {"raises": ModelFailed, "kills": InstanceDied, "hangs": ExecutionTimeout}


class Model:
    holds_process = True

    def __init__(self, faults: dict[int, str], log: list[set[int]], *, is_request_wise: bool) -> None:
        self.faults, self.log, self.is_request_wise = faults, log, is_request_wise
        self.is_alive = True

    def run(self, inputs, outputs):
        self.execute(inputs["IN"][:, 0])
        return {"OUT": inputs["IN"] * 2}

    def run_requests(self, requests):
        self.execute([request.inputs["IN"][0, 0] for request in requests])
        return [{"OUT": request.inputs["IN"] * 2} for request in requests]

    def execute(self, values) -> None:
        assert self.is_alive
        numbers = {int(n) for n in values}
        self.log.append(numbers)
        for number in sorted(numbers & set(self.faults)):
            self.is_alive = self.faults[number] == "raises"
            raise ERRORS[self.faults[number]]("fault")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("is_request_wise", [False, True])
@given(
    rows=st.lists(st.integers(1, 3), min_size=1, max_size=16),
    faults=st.dictionaries(st.integers(0, 15), st.sampled_from(sorted(ERRORS)), max_size=4),
)
def test_only_the_guilty_fail(is_request_wise, rows, faults):
    log: list[set[int]] = []
    config = make_config(64)
    items = [make_item(n, rows=count) for n, count in enumerate(rows)]
    delivered = []
    executor = Executor(
        config,
        Model(faults, log, is_request_wise=is_request_wise),
        lambda: Model(faults, log, is_request_wise=is_request_wise),
    )
    outcomes = executor.run(items, lambda some, _: delivered.extend(some)).outcomes

    assert sorted(item.key[1] for item in delivered) == list(range(len(items)))
    for number, (item, outcome) in enumerate(zip(items, outcomes, strict=True)):
        if number in faults:
            assert isinstance(outcome, ModelFailed)
        else:
            assert not isinstance(outcome, HeadraceError)
            assert to_array(outcome.layout.tensors[0], outcome.data[0]).tolist() == [[number * 2] * 2] * item.rows

    guilty = {n: fault for n, fault in faults.items() if n < len(items)}
    assert len(log) <= 2 * len(items)
    if set(guilty.values()) <= {"raises"}:
        assert len(log) <= 1 + 2 * len(guilty) * math.ceil(math.log2(max(2, len(items))))
    deaths = [run for run in log if guilty.get(min(run & set(guilty), default=-1), "raises") != "raises"]
    assert all(sum(number in run for run in deaths) <= 2 for number in range(len(items)))
