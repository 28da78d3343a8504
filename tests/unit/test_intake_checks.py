"""Whether a request fits its model: what passes can be viewed as arrays, what does not is named."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import HeadraceError, InvalidInput
from contract.messages import Layout, RequestHead, TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import NUMPY_TYPES, encode_elements, to_array
from workers.checks import MAX_CACHED_LAYOUTS, LayoutChecks, request_bytes, slice_request

CONFIG = ModelConfig(
    "m",
    "python",
    max_batch_size=4,
    inputs=(TensorSpec("A", "FP32", (2,)), TensorSpec("B", "INT64", (-1,), is_optional=True)),
    outputs=(TensorSpec("OUT", "FP32", (2,)),),
)
TEXT = ModelConfig("t", "python", max_batch_size=4, inputs=(TensorSpec("T", "BYTES", (1,)),))
FLAT = ModelConfig("f", "python", max_batch_size=0, inputs=(TensorSpec("A", "FP32", (2, -1)),))


def layout(*tensors: tuple[str, str, tuple[int, ...]]) -> Layout:
    return Layout(tuple(TensorHead(*t) for t in tensors))


def head(rows: int = 1, sizes: tuple[int, ...] = ()) -> RequestHead:
    return RequestHead(id=1, layout=0, rows=rows, deadline_unix_ms=0, admitted_unix_us=0, sizes=sizes)


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        ([("A", "FP32", (1, 3))], ["'A'", "[1, 3]", "[2]"]),
        ([("A", "FP32", (5, 2))], ["'A'", "[5, 2]", "4"]),
        ([("A", "FP32", (0, 2))], ["'A'", "1 to 4"]),
        ([("A", "FP32", ())], ["'A'"]),
        ([("A", "INT32", (1, 2))], ["'A'", "INT32", "FP32"]),
        ([("C", "FP32", (1, 2))], ["'A'", "missing"]),
        ([("A", "FP32", (1, 2)), ("C", "FP32", (1, 2))], ["'C'"]),
        ([("A", "FP32", (1, 2)), ("A", "FP32", (1, 2))], ["twice"]),
        ([("A", "FP32", (1, 2)), ("B", "INT64", (2, 3))], ["rows", "[1, 2]"]),
        ([("A", "FP32", (1, 2)), ("B", "INT64", (1, -3))], ["'B'"]),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(tensors, names) -> None:
    error = LayoutChecks(CONFIG).check(layout(*tensors)).error
    assert isinstance(error, InvalidInput)
    assert all(name in error.message for name in names), error.message


def test_a_layout_that_fits_tells_rows_and_sizes() -> None:
    checked = LayoutChecks(CONFIG).check(layout(("A", "FP32", (3, 2)), ("B", "INT64", (3, 5))))
    assert (checked.error, checked.rows, checked.sizes, checked.num_bytes) == (None, 3, (24, 120), 144)


def test_without_a_batch_dimension_the_whole_shape_counts() -> None:
    checks = LayoutChecks(FLAT)
    assert checks.check(layout(("A", "FP32", (2, 7)))).error is None
    assert checks.check(layout(("A", "FP32", (1, 2, 7)))).error is not None


def test_verdicts_are_remembered_but_not_without_bound() -> None:
    checks = LayoutChecks(CONFIG)
    first = layout(("A", "FP32", (1, 2)))
    assert checks.check(first) is checks.check(layout(("A", "FP32", (1, 2))))
    for n in range(MAX_CACHED_LAYOUTS + 10):
        checks.check(layout(("A", "FP32", (1, 2)), ("B", "INT64", (1, n))))
    assert len(checks._known) == MAX_CACHED_LAYOUTS


@pytest.mark.parametrize(
    ("body", "sizes", "rows"),
    [
        (b"\0" * 7, (), 1),
        (b"\0" * 9, (), 1),
        (b"\0" * 8, (9,), 1),
        (b"\0" * 8, (8, 0), 1),
        (b"\0" * 8, (), 2),
    ],
)
def test_bytes_that_do_not_fit_are_refused(body: bytes, sizes: tuple[int, ...], rows: int) -> None:
    checked = LayoutChecks(CONFIG).check(layout(("A", "FP32", (1, 2))))
    with pytest.raises(InvalidInput):
        slice_request(checked, head(rows, sizes), memoryview(body))


@pytest.mark.parametrize(
    "data",
    [b"\x01\0\0", b"\x05\0\0\0abc", b"", encode_elements([b"a", b"b"]), b"\xff\xff\xff\xff"],
)
def test_text_whose_lengths_do_not_add_up_is_refused_by_name(data: bytes) -> None:
    checked = LayoutChecks(TEXT).check(layout(("T", "BYTES", (1, 1))))
    with pytest.raises(InvalidInput, match="'T'"):
        slice_request(checked, head(1, (len(data),)), memoryview(data))


def test_text_without_sizes_cannot_be_found_in_a_body() -> None:
    checked = LayoutChecks(TEXT).check(layout(("T", "BYTES", (1, 1))))
    with pytest.raises(InvalidInput):
        request_bytes(checked, head())


def test_an_unknown_output_is_named() -> None:
    with pytest.raises(InvalidInput, match="NOPE"):
        LayoutChecks(CONFIG).check_outputs(["OUT", "NOPE"])


shapes = st.lists(st.integers(-2, 6), max_size=3).map(tuple)


@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(["A", "B", "T", "X"]), st.sampled_from([*NUMPY_TYPES, "BYTES", "NO"]), shapes),
        max_size=3,
    ),
    sizes=st.lists(st.integers(-4, 64), max_size=3),
    rows=st.integers(-1, 5),
    body=st.binary(max_size=96),
    config=st.sampled_from([CONFIG, TEXT, FLAT]),
)
def test_whatever_passes_can_be_viewed_as_arrays(tensors, sizes, rows, body, config) -> None:
    checked = LayoutChecks(config).check(layout(*tensors))
    asked = head(rows, tuple(sizes))
    try:
        size = request_bytes(checked, asked)
        views = slice_request(checked, asked, memoryview(body)[:size])
    except HeadraceError:
        return
    for tensor, view in zip(checked.layout.tensors, views, strict=True):
        assert to_array(tensor, view).size == math.prod(tensor.shape)
