"""The classification extension in the worker: Triton's texts, for every datatype that has an order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from contract.errors import InvalidInput
from contract.messages import Layout, TensorHead
from contract.tensors import decode_elements, from_array, num_elements
from tests.support.batcher_kit import make_config, make_item
from workers.classify import classify
from workers.instance import Executor
from workers.items import Answer

LABELS = {"OUT": ("negative", "neutral", "", "positive")}


def classes(array: np.ndarray, k: int, datatype: str = "", *, is_batched: bool = True) -> tuple[tuple[int, ...], list]:
    head, data = from_array("OUT", array, datatype or None)
    layout, parts = classify(Layout((head,)), [data], {"OUT": k}, LABELS, is_batched=is_batched)
    (tensor,) = layout.tensors
    assert tensor.datatype == "BYTES"
    return tensor.shape, [e.decode() for e in decode_elements("OUT", parts[0], num_elements(tensor.shape))]


def test_each_row_gets_its_highest_values_with_index_and_label() -> None:
    logits = np.array([[0.1, 0.7, 0.2], [-1.5, -3, 2.25]], np.float32)
    assert classes(logits, 2) == (
        (2, 2),
        ["0.700000:1:neutral", "0.200000:2", "2.250000:2", "-1.500000:0:negative"],
    )


def test_more_classes_than_there_are_gives_all() -> None:
    assert classes(np.array([[1, 3, 2]], np.float32), 99)[0] == (1, 3)


def test_without_batching_all_elements_are_one_row() -> None:
    array = np.array([[1, 5], [9, 7]], np.float32)
    assert classes(array, 3, is_batched=False) == ((3,), ["9.000000:2", "7.000000:3:positive", "5.000000:1:neutral"])


def test_inner_dimensions_count_as_one() -> None:
    assert classes(np.arange(8, dtype=np.int32).reshape(2, 2, 2), 1) == ((2, 1), ["3:3:positive", "7:3:positive"])


def test_equal_values_stand_in_the_order_of_their_index() -> None:
    for dtype in (np.float32, np.int64, np.uint8):
        assert [t.split(":")[1] for t in classes(np.ones((1, 4), dtype), 4)[1]] == ["0", "1", "2", "3"]


def test_nan_stands_last_and_infinities_where_they_belong() -> None:
    array = np.array([[math.nan, -math.inf, math.inf, 0]], np.float32)
    assert classes(array, 4)[1] == ["inf:2", "0.000000:3:positive", "-inf:1:neutral", "nan:0:negative"]


@pytest.mark.parametrize(
    ("array", "best"),
    [
        (np.array([[0, 2**64 - 1]], np.uint64), "18446744073709551615:1:neutral"),
        (np.array([[-(2**63), 0]], np.int64), "0:1:neutral"),
        (np.array([[-128, 127]], np.int8), "127:1:neutral"),
        (np.array([[0, 255]], np.uint8), "255:1:neutral"),
        (np.array([[-1, 0.5]], np.float16), "0.500000:1:neutral"),
        (np.array([[1e300, 1e301]], np.float64), f"{1e301:f}:1:neutral"),
    ],
)
def test_no_datatype_wraps(array: np.ndarray, best: str) -> None:
    assert classes(array, 1)[1] == [best]


def test_bf16_counts_as_the_number_it_is() -> None:
    assert classes(np.array([[0xBF80, 0x3F80]], np.uint16), 2, "BF16")[1] == [
        "1.000000:1:neutral",
        "-1.000000:0:negative",
    ]


@pytest.mark.parametrize("array", [np.array([[True]]), np.array([[b"x"]], object)])
def test_what_has_no_order_is_refused_by_name(array: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"'OUT'.*(BOOL|BYTES)"):
        classes(array, 1)


def test_empty_outputs_have_no_classes() -> None:
    assert classes(np.zeros((2, 0), np.float32), 3) == ((2, 0), [])


def test_other_outputs_stay_as_they_are() -> None:
    head, data = TensorHead("B", "FP32", (1, 1)), b"\0\0\0\0"
    layout, parts = classify(Layout((head,)), [data], {"OUT": 2}, LABELS, is_batched=True)
    assert layout.tensors == (head,)
    assert parts == [data]


class Echo:
    is_request_wise = False
    holds_process = False

    def run(self, inputs, outputs):
        return {"OUT": inputs["IN"]}

    def run_requests(self, requests):
        raise AssertionError

    def close(self) -> None:
        """Nothing is held."""


def test_mates_that_want_rows_and_mates_that_want_classes_share_an_execution() -> None:
    executor = Executor(make_config(8), Echo(), Echo, lambda: 0.0, labels=LABELS)
    arrays = {"IN": np.array([[1, 2]], np.float32)}
    items = [
        make_item(1, arrays, outputs=("OUT",)),
        make_item(2, arrays, outputs=("OUT",), classifications=(1,)),
        make_item(3, arrays, outputs=("OUT",), classifications=(0,)),
    ]
    execution = executor.run(items)
    assert execution.rows_per_execution == [3]
    answers = execution.outcomes
    assert all(isinstance(answer, Answer) for answer in answers)
    assert [answer.layout.tensors[0].datatype for answer in answers] == ["FP32", "BYTES", "FP32"]
    assert decode_elements("OUT", answers[1].data[0], 1) == [b"2.000000:1:neutral"]
