"""Tensors survive raw bytes, for every datatype and shape; sizes that lie are refused with both numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contract.errors import InvalidInput
from contract.messages import TensorHead
from contract.tensors import NUMPY_TYPES, byte_size, decode_elements, encode_elements, from_array, to_array

FIXED = [t for t in NUMPY_TYPES if t != "BF16"]
ELEMENTS = st.lists(st.binary(max_size=12), max_size=6)


@given(st.data(), st.sampled_from(FIXED))
def test_an_array_comes_back_from_its_bytes(data: st.DataObject, datatype: str) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(NUMPY_TYPES[datatype], shape))
    head, raw = from_array("x", array)
    assert head == TensorHead("x", datatype, shape)
    assert len(raw) == byte_size(datatype, shape)
    assert to_array(head, raw).tobytes() == array.tobytes()


@given(hnp.arrays("<u2", hnp.array_shapes(max_dims=2, max_side=4)))
def test_bf16_keeps_its_sixteen_bits(array: np.ndarray) -> None:
    head, raw = from_array("x", array, "BF16")
    assert head.datatype == "BF16"
    assert to_array(head, raw).tobytes() == array.tobytes()


@given(ELEMENTS)
def test_elements_are_measured_in_bytes_and_come_back(elements: list[bytes]) -> None:
    assert decode_elements("x", encode_elements(elements), len(elements)) == elements


@given(ELEMENTS.filter(bool), st.integers(1, 3))
def test_a_count_that_lies_is_refused(elements: list[bytes], off: int) -> None:
    raw = encode_elements(elements)
    for count in (len(elements) + off, max(0, len(elements) - off)):
        with pytest.raises(InvalidInput, match="'x'"):
            decode_elements("x", raw, count)


@given(st.binary(max_size=40), st.integers(0, 5))
def test_any_bytes_decode_to_that_many_elements_or_are_refused(raw: bytes, count: int) -> None:
    try:
        elements = decode_elements("x", raw, count)
    except InvalidInput:
        return
    assert encode_elements(elements) == raw


@given(st.sampled_from(FIXED), st.integers(1, 7))
def test_a_size_that_does_not_fit_the_shape_is_refused_with_both_numbers(datatype: str, surplus: int) -> None:
    wanted = byte_size(datatype, (2, 3))
    assert wanted is not None
    with pytest.raises(InvalidInput, match=rf"'x'.* {wanted + surplus} bytes.* has {wanted}"):
        to_array(TensorHead("x", datatype, (2, 3)), b"\0" * (wanted + surplus))


def test_text_elements_become_their_utf8_bytes() -> None:
    head, raw = from_array("x", np.array(["naïve", "日本語", "🙂"], object))
    assert to_array(head, raw).tolist() == ["naïve".encode(), "日本語".encode(), "🙂".encode()]


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "V3"])
def test_a_numpy_type_without_a_datatype_is_refused_by_name(dtype: str) -> None:
    with pytest.raises(InvalidInput, match=r"'x'.*no OIP datatype"):
        from_array("x", np.zeros(2, dtype))


def test_big_endian_arrays_leave_as_little_endian() -> None:
    assert from_array("x", np.array([1, 2], ">i4"))[1] == b"\1\0\0\0\2\0\0\0"
