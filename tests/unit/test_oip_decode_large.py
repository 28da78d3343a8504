"""JSON near the size limit: no shape of it may hold up the loop, and what clients send is not refused for its looks."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from contract.errors import HeadraceError, TooLarge
from gateway.oip.decode import MAX_EXPLAINED_BYTES, MAX_JSON_BYTES, decode
from gateway.oip.explain import MAX_PIECES
from tests.support.oip_kit import flat

AT_MOST_S = 2.0
"""Of this thread's own time; the slowest takes about 0.4 s."""


def request(item: bytes, datatype: str, num_bytes: int = MAX_JSON_BYTES - 300) -> bytes:
    num = num_bytes // (len(item) + 1)
    data = b",".join([item] * num)
    return b'{"inputs":[{"name":"IN","shape":[%d],"datatype":"%s","data":[%b]}]}' % (num, datatype.encode(), data)


@pytest.mark.parametrize(
    ("item", "datatype"),
    [
        (b"1", "FP32"),
        (b"1", "BOOL"),
        (b"1", "BF16"),
        (b"true", "BOOL"),
        (b"null", "FP32"),
        (b"1e400", "FP32"),
        (b'""', "BYTES"),
        (b'"\\n"', "BYTES"),
        (b"[]", "FP32"),
        (b"[[[1]]]", "FP32"),
        (b'{"a":1}', "FP32"),
        (b"{}", "FP32"),
        (b'[""]', "BYTES"),
        (b'"\\\\"', "BYTES"),
    ],
)
def test_no_shape_of_json_takes_seconds(item: bytes, datatype: str) -> None:
    body = request(item, datatype)
    began_s = time.thread_time()
    with contextlib.suppress(HeadraceError):
        decode(body, None, flat(datatype))
    assert time.thread_time() - began_s < AT_MOST_S


@pytest.mark.parametrize("field", [b'"x":%b', b'"parameters":{"a":%b}', b'"outputs":%b', b'"id":%b'])
def test_pieces_count_wherever_they_are(field: bytes) -> None:
    pieces = b"[" + b",".join([b'""'] * (MAX_PIECES + 1)) + b"]"
    with pytest.raises(TooLarge, match=str(MAX_PIECES)):
        decode(b"{" + field % pieces + b"," + request(b"1", "FP32", 10)[1:], None, flat("FP32"))


def test_as_many_texts_as_are_allowed_are_taken() -> None:
    body = request(b'"text"', "BYTES", 7 * (MAX_PIECES - 100))
    assert MAX_EXPLAINED_BYTES < len(body) < MAX_JSON_BYTES
    assert len(decode(body, None, flat("BYTES")).data[0]) == 8 * (MAX_PIECES - 100)


def test_a_long_text_full_of_quotes_is_one_piece() -> None:
    text = '{"said": ["a", "b"]}' * 100_000
    body = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "BYTES", "data": [text]}]}).encode()
    assert text.encode() in bytes(decode(body, None, flat("BYTES")).data[0])
