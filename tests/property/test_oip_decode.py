"""Whatever bytes arrive, decoding ends in a request or in a HeadraceError."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.errors import HeadraceError, InvalidInput, TooLarge
from contract.model_config import ModelCard, ModelConfig, TensorSpec
from contract.tensors import DATATYPES, byte_size
from gateway.oip.binary import header_length
from gateway.oip.decode import DecodedRequest, decode

CARDS = [
    ModelCard(ModelConfig("flat", "python", inputs=(TensorSpec("IN", datatype, (-1,)),)), ()) for datatype in DATATYPES
] + [
    ModelCard(
        ModelConfig(
            "two",
            "python",
            max_batch_size=4,
            inputs=(TensorSpec("IN", "FP32", (2,)), TensorSpec("B", "INT8", (1,), is_optional=True)),
            outputs=(TensorSpec("OUT", "FP32", (2,)),),
        ),
        (),
    )
]

names = st.sampled_from(["IN", "B", "", "x"]) | st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
numbers = st.integers(-3, 300) | st.floats() | st.booleans() | st.text(max_size=3)
data = st.lists(numbers | st.lists(numbers, max_size=3), max_size=6)
parameters = st.dictionaries(
    st.sampled_from(
        ["binary_data_size", "priority", "timeout", "binary_data_output", "binary_data", "sequence_id", "n"]
    ),
    json_values | st.integers(0, 20),
    max_size=3,
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return strategy | json_values


inputs = st.fixed_dictionaries(
    {
        "name": maybe(names),
        "shape": maybe(st.lists(st.integers(-1, 5), max_size=3)),
        "datatype": maybe(st.sampled_from(DATATYPES)),
    },
    optional={"data": maybe(data), "parameters": maybe(parameters)},
)
requests = st.fixed_dictionaries(
    {"inputs": maybe(st.lists(maybe(inputs), max_size=3))},
    optional={
        "id": maybe(st.text(max_size=4)),
        "outputs": maybe(
            st.lists(maybe(st.fixed_dictionaries({"name": names}, optional={"parameters": parameters})), max_size=2)
        ),
        "parameters": maybe(parameters),
    },
)


def outcome(raw: bytes, length: int | None, card: ModelCard) -> DecodedRequest | HeadraceError:
    try:
        decoded = decode(raw, length, card)
    except (InvalidInput, TooLarge) as e:
        return e
    for head, part in zip(decoded.heads, decoded.data, strict=True):
        wanted = byte_size(head.datatype, head.shape)
        assert wanted is None or len(part) == wanted
    assert decoded.payload_bytes == sum(map(len, decoded.data))
    return decoded


@given(st.binary(max_size=200), st.none() | st.integers(0, 220), st.sampled_from(CARDS))
def test_any_bytes_end_in_a_request_or_a_refusal(raw: bytes, length: int | None, card: ModelCard) -> None:
    outcome(raw, length, card)


@given(requests, st.sampled_from(CARDS), st.binary(max_size=40), st.none() | st.integers(-3, 3))
def test_anything_like_a_request_ends_in_a_request_or_a_refusal(
    request: Any, card: ModelCard, tail: bytes, off_by: int | None
) -> None:
    text = json.dumps(request).encode()
    outcome(text + tail, None if off_by is None else max(0, len(text) + off_by), card)


@given(st.sampled_from(CARDS), st.binary(max_size=60))
def test_a_raw_request_of_any_bytes_ends_in_a_request_or_a_refusal(card: ModelCard, raw: bytes) -> None:
    outcome(raw, 0, card)


@given(st.lists(st.text(max_size=12), max_size=3))
def test_any_header_value_is_a_length_or_a_refusal(values: list[str]) -> None:
    try:
        length = header_length(values)
    except HeadraceError:
        return
    assert length is None or length >= 0
