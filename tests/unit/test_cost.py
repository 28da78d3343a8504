import msgspec
import pytest

from contract.errors import InvalidInput
from tests.support.batcher_kit import make_ragged_config
from workers.cost import PaddingCost, padding_cost, pick_run


def run_of(lengths: list[int], oldest: int, *, rows: list[int] | None = None, max_rows: int = 32) -> list[int]:
    first, end = pick_run(lengths, rows or [1] * len(lengths), oldest, max_rows, PaddingCost())
    return lengths[first:end]


def test_equal_lengths_are_joined_up_to_the_token_cap():
    assert run_of([32] * 40, 20) == [32] * 16


def test_the_row_limit_holds():
    assert run_of([4] * 40, 20, max_rows=10) == [4] * 10


def test_rows_of_one_request_count_all():
    assert run_of([8, 8, 8], 1, rows=[5, 5, 5], max_rows=12) == [8, 8]


def test_a_long_row_is_not_padded_to_by_short_ones():
    assert run_of([4, 5, 6, 250], 0) == [4, 5, 6]
    assert run_of([4, 5, 6, 250], 3) == [250]


def test_short_rows_join_a_little_longer_oldest_because_an_execution_has_a_price():
    assert run_of([7, 8], 1) == [7, 8]


def test_the_oldest_runs_alone_when_it_alone_is_over_a_limit():
    assert run_of([600, 600], 0) == [600]
    assert run_of([8, 8], 1, rows=[1, 50], max_rows=32) == [8]


def test_parameters_of_the_model_change_the_cost():
    config = msgspec.structs.replace(
        make_ragged_config(), parameters={"max_padded_tokens": "8192", "base_tokens": "64"}
    )
    assert padding_cost(config) == PaddingCost(64, 8192)
    assert padding_cost(make_ragged_config()) == PaddingCost()


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "", "²"])
def test_a_parameter_that_is_no_positive_whole_number_is_refused_by_name(value):
    config = msgspec.structs.replace(make_ragged_config(), parameters={"max_padded_tokens": value})
    with pytest.raises(InvalidInput, match="max_padded_tokens"):
        padding_cost(config)
