from hypothesis import given
from hypothesis import strategies as st

from workers.cost import PaddingCost, pick_run


@st.composite
def waiting(draw):
    sizes = draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 6)), min_size=1, max_size=40))
    sizes.sort()
    cost = PaddingCost(draw(st.sampled_from([1.0, 8.0, 64.0])), draw(st.sampled_from([20, 512, 4096])))
    max_rows = draw(st.sampled_from([1, 6, 32]))
    return [n for n, _ in sizes], [r for _, r in sizes], draw(st.integers(0, len(sizes) - 1)), max_rows, cost


def worth(lengths, rows, first, end, cost):
    useful = sum(n * r for n, r in zip(lengths[first:end], rows[first:end], strict=True))
    return useful / (cost.base_tokens + sum(rows[first:end]) * lengths[end - 1])


def fits(lengths, rows, first, end, max_rows, cost):
    num = sum(rows[first:end])
    return num <= max_rows and num * lengths[end - 1] <= cost.max_padded_tokens


@given(waiting())
def test_the_oldest_is_in_and_more_than_it_keeps_both_limits(case):
    lengths, rows, oldest, max_rows, cost = case
    first, end = pick_run(lengths, rows, oldest, max_rows, cost)
    assert 0 <= first <= oldest < end <= len(lengths)
    assert end - first == 1 or fits(lengths, rows, first, end, max_rows, cost)


@given(waiting())
def test_no_run_around_the_oldest_is_worth_more(case):
    lengths, rows, oldest, max_rows, cost = case
    first, end = pick_run(lengths, rows, oldest, max_rows, cost)
    best = max(
        worth(lengths, rows, low, high, cost)
        for low in range(oldest + 1)
        for high in range(oldest + 1, len(lengths) + 1)
        if high - low == 1 or fits(lengths, rows, low, high, max_rows, cost)
    )
    assert worth(lengths, rows, first, end, cost) >= best * (1 - 1e-9)


@given(waiting())
def test_padding_is_never_more_than_the_executions_it_saves(case):
    lengths, rows, oldest, max_rows, cost = case
    first, end = pick_run(lengths, rows, oldest, max_rows, cost)
    useful = sum(n * r for n, r in zip(lengths[first:end], rows[first:end], strict=True))
    padded = sum(rows[first:end]) * lengths[end - 1]
    alone = lengths[oldest] * rows[oldest]
    assert padded + cost.base_tokens <= useful * (alone + cost.base_tokens) / alone * (1 + 1e-9)
