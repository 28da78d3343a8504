"""Tensors that were encoded as a response decode to the same bytes as a request, in JSON and in binary."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contract.messages import TensorHead
from contract.model_config import ModelCard, ModelConfig, TensorSpec
from contract.tensors import DATATYPES, NUMPY_TYPES, encode_elements
from gateway.core import Answer
from gateway.oip.decode import decode
from gateway.oip.encode import encode
from gateway.oip.request import BINARY_FORM, JSON_FORM, OutputForm

shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
NAN_FREE = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorHead, bytes]:
    datatype, shape = draw(st.sampled_from(DATATYPES)), draw(shapes)
    count = math.prod(shape)
    head = TensorHead("T", datatype, shape)
    if datatype == "BYTES":
        texts = draw(st.lists(st.text(max_size=6), min_size=count, max_size=count))
        return head, encode_elements(text.encode() for text in texts)
    size = NUMPY_TYPES[datatype].itemsize * count
    raw = draw(st.binary(min_size=size, max_size=size))
    return head, _canonical(datatype, raw)


def _canonical(datatype: str, raw: bytes) -> bytes:
    """JSON has one NaN: every NaN becomes the one that reading it gives. A BOOL byte is 0 or 1."""
    if datatype == "BOOL":
        return bytes(b & 1 for b in raw)
    if datatype == "BF16":
        bits = np.frombuffer(raw, "<u2").copy()
        bits[((bits & 0x7F80) == 0x7F80) & ((bits & 0x7F) != 0)] = 0x7FC0
        return bits.tobytes()
    if datatype in NAN_FREE:
        values = np.frombuffer(raw, NAN_FREE[datatype]).copy()
        values[np.isnan(values)] = math.nan
        return values.tobytes()
    return raw


def round_trip(head: TensorHead, raw: bytes, form: OutputForm) -> bytes:
    answer = Answer("m", "1", (head,), [memoryview(raw)], {}, 0, 0, 1)
    encoded = encode(answer, "", form)
    whole = b"".join(encoded.parts)
    length = encoded.header_length
    text = json.loads(whole if length is None else whole[:length])
    request = json.dumps({"inputs": text["outputs"]}).encode()
    tail = b"" if length is None else whole[length:]
    card = ModelCard(ModelConfig("m", "python", inputs=(TensorSpec("T", head.datatype, (-1,) * len(head.shape)),)), ())
    decoded = decode(request + tail, None if length is None else len(request), card)
    assert decoded.heads == (head,)
    return bytes(decoded.data[0])


@given(tensors())
def test_json_gives_back_the_same_bytes_for_every_datatype(tensor: tuple[TensorHead, bytes]) -> None:
    head, raw = tensor
    assert round_trip(head, raw, JSON_FORM) == raw


@given(tensors())
def test_binary_gives_back_the_same_bytes_for_every_datatype(tensor: tuple[TensorHead, bytes]) -> None:
    head, raw = tensor
    assert round_trip(head, raw, BINARY_FORM) == raw
