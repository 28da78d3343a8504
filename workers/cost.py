"""What a micro-batch of ragged rows costs in padded tokens, and which waiting rows to join. Pure; knows no queue.

An execution costs about `base + rows * longest` tokens, because every row is padded to the longest. Worth is
useful tokens per cost. Candidates are sorted by length; only contiguous runs around the oldest row are looked at:
for the same rows and the same longest row, swapping a row for one between it and the oldest never pads more.

Invariants: the oldest row is always in; limits hold; no run around it is worth more, so padding never makes the
oldest row's execution worth less than running it alone (tests/property/test_batcher_cost.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from contract.errors import InvalidInput
from contract.model_config import ModelConfig

BASE_TOKENS: Final = 8.0
"""Fixed cost of an execution, in tokens: MiniLM on one CPU thread takes 2 ms + 0.25 ms per padded token."""
MAX_PADDED_TOKENS: Final = 512
"""On a CPU nothing is gained beyond 256 padded tokens, and from about 2,000 on it gets slower per token."""


class PaddingCost(msgspec.Struct, frozen=True):
    """Cost of one execution: `base_tokens + rows * longest`, and the most padded tokens that are joined."""

    base_tokens: float = BASE_TOKENS
    max_padded_tokens: int = MAX_PADDED_TOKENS


def padding_cost(config: ModelConfig) -> PaddingCost:
    """The cost of a model, changed by its parameters `base_tokens` and `max_padded_tokens` (a GPU wants more).

    Raises:
        InvalidInput: one of them is not a positive whole number; names the model, the parameter and the value.
    """
    base = _whole(config, "base_tokens", BASE_TOKENS)
    return PaddingCost(base, int(_whole(config, "max_padded_tokens", MAX_PADDED_TOKENS)))


def pick_run(
    lengths: Sequence[int], rows: Sequence[int], oldest: int, max_rows: int, cost: PaddingCost
) -> tuple[int, int]:
    """First and one past the last candidate to run together with `oldest`, which runs alone if nothing else fits.

    Candidates are sorted by length. Per longest row the best shortest row is found by bisection: with rows added
    from long to short, worth rises and then only falls.
    """
    before = [0, *accumulate(rows)]
    useful = [0, *accumulate([n * length for n, length in zip(rows, lengths, strict=True)])]
    best, best_worth = (oldest, oldest + 1), 0.0
    for last in range(oldest, len(lengths)):
        longest, end = lengths[last], before[last + 1]
        row_limit = min(max_rows, cost.max_padded_tokens // longest)
        if end - before[oldest] > row_limit and last > oldest:
            break
        low = min(oldest, bisect_left(before, end - row_limit))
        high = oldest
        while low < high:
            middle = (low + high + 1) // 2
            padded = cost.base_tokens + (end - before[middle]) * longest
            if lengths[middle - 1] * padded > longest * (useful[last + 1] - useful[middle]):
                high = middle - 1
            else:
                low = middle
        worth = (useful[last + 1] - useful[low]) / (cost.base_tokens + (end - before[low]) * longest)
        if worth > best_worth:
            best, best_worth = (low, last + 1), worth
    return best


def pick_prefix(lengths: Sequence[int], rows: Sequence[int], cost: PaddingCost) -> int:
    """How many of the first candidates to run together where their order is to be kept; at least one."""
    best, best_worth = 1, 0.0
    longest = num_rows = useful = 0
    for n, (length, own) in enumerate(zip(lengths, rows, strict=True), 1):
        longest, num_rows, useful = max(longest, length), num_rows + own, useful + length * own
        if n > 1 and num_rows * longest > cost.max_padded_tokens:
            break
        worth = useful / (cost.base_tokens + num_rows * longest)
        if worth > best_worth:
            best, best_worth = n, worth
    return best


def _whole(config: ModelConfig, name: str, default: float) -> float:
    value = config.parameters.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and 0 < len(value) <= 9 and int(value)):
        raise InvalidInput(f"model {config.name!r}: parameter {name} is {value!r}, it must be a whole number above 0")
    return int(value)
