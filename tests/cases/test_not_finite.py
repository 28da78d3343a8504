"""NaN and the infinities through every pair of forms: whole bodies, bit for bit in binary, bare literals in JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.cases.conftest import Server
from tests.support.cluster_http import Answered, binary_request, infer

VALUES = np.array([[1.0, np.nan, np.inf, -np.inf]], dtype=np.float32)
BITS = np.array([[0x7FC00001, 0xFFC00000, 0x7F800001, 0x80000000]], dtype=np.uint32).view(np.float32)
"""NaNs that carry something, one of them signalling, and a negative zero."""
JSON_TEXT = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1.0, NaN, Infinity, -Infinity]}]%s}'
BINARY_OUT = b',"parameters":{"binary_data_output":true}'


def check_json(answer: Answered) -> None:
    """A whole body whose literals a Python or Triton client reads back."""
    assert answer.status == 200
    assert int(answer.headers["content-length"]) == len(answer.body)
    found: list[Any] = json.loads(answer.body)["outputs"][0]["data"]
    assert found[0] == 1.0
    assert math.isnan(found[1])
    assert found[2:] == [math.inf, -math.inf]
    for literal in (b"NaN", b"Infinity", b"-Infinity"):
        assert literal in answer.body


async def test_binary_in_and_json_out_is_a_whole_body_with_bare_literals(server: Server) -> None:
    body, headers = binary_request(VALUES, wants_binary=False)
    check_json(await infer(server.port, "ident_f32", body, headers))


async def test_bare_literals_in_and_json_out(server: Server) -> None:
    check_json(await infer(server.port, "ident_f32", JSON_TEXT % b""))


async def test_bare_literals_in_and_binary_out(server: Server) -> None:
    answer = await infer(server.port, "ident_f32", JSON_TEXT % BINARY_OUT)
    np.testing.assert_array_equal(np.frombuffer(answer.binary(), np.float32), VALUES[0])


@pytest.mark.parametrize("values", [VALUES, BITS], ids=["values", "bits"])
async def test_binary_in_and_binary_out_is_bit_exact(server: Server, values: np.ndarray) -> None:
    body, headers = binary_request(values)
    assert (await infer(server.port, "ident_f32", body, headers)).binary() == values.tobytes()


async def test_half_precision_carries_them_in_both_forms(server: Server) -> None:
    halves = VALUES.astype(np.float16)
    body, headers = binary_request(halves, datatype="FP16")
    assert (await infer(server.port, "ident_f16", body, headers)).binary() == halves.tobytes()
    # BF16 is the upper half of an FP32.
    upper = (VALUES.view(np.uint32) >> 16).astype(np.uint16)
    body, headers = binary_request(upper, datatype="BF16")
    assert (await infer(server.port, "ident_bf16", body, headers)).binary() == upper.tobytes()


@pytest.mark.parametrize("literal", ["nan", "inf", "+Infinity", "-NaN", "Inf", "NaN0", "Infinity1", '"NaN"', "1e999x"])
async def test_other_spellings_are_refused(server: Server, literal: str) -> None:
    body = (JSON_TEXT % b"").replace(b"NaN", literal.encode())
    answer = await infer(server.port, "ident_f32", body)
    assert answer.status == 400, answer.body
    assert answer.error


async def test_a_text_that_spells_nan_stays_a_text(server: Server) -> None:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[3],"data":["NaN","-Infinity","a NaN, b"]}]}'
    assert (await infer(server.port, "ident_bytes", body)).data == ["NaN", "-Infinity", "a NaN, b"]
