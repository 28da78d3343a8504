"""Our HTTP door against what a real MLServer answered to the same OIP JSON (record.py wrote it down).

Where both answer, the answers are equal; what MLServer refuses, or dies of, we refuse with 400. Every other difference
is listed here with its reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.tensors import NUMPY_TYPES
from gateway.http.server import HttpDoor
from tests.differential.cases import Case, cases
from tests.support.http_kit import EchoCore, RawClient, http, open_door

RECORDED = json.loads((Path(__file__).parent / "mlserver_answers.json").read_text(encoding="utf-8"))
CASES = list(cases())

STRICTER = {
    "INT64 below": "MLServer takes the nearest number that fits",
    "INT32 as floats": "a number of another type is refused, not converted",
    "INT32 as fractions": "MLServer cuts 1.5 to 1",
    "INT32 as text": "a number of another type is refused, not converted",
    "FP32 null": "null is no number; NaN is written NaN",
    "BOOL as numbers": "a number of another type is refused, not converted",
    "BYTES as numbers": "MLServer makes empty texts of them",
    "negative size": "-1 stands in a model's shape, not in a request's",
    "matrix nested too deep": "data follows its shape or is flat",
    "matrix nested the other way": "data follows its shape or is flat",
}
"""MLServer answers, we refuse."""
MORE_LENIENT = {"id of unicode": "MLServer writes the id into a header and fails"}
"""MLServer fails, we answer."""


@pytest.fixture
async def client() -> Any:
    door: HttpDoor = await open_door(EchoCore())
    async with RawClient(door.port) as connected:
        yield connected
    await door.close()


def test_every_case_was_recorded() -> None:
    assert list(RECORDED["answers"]) == [case.name for case in CASES]
    assert {*STRICTER, *MORE_LENIENT} <= set(RECORDED["answers"])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_the_door_answers_as_mlserver_does(client: RawClient, case: Case) -> None:
    theirs = RECORDED["answers"][case.name]
    ours = await client.ask(http(case.body, path=f"/v2/models/{case.model}/infer"))
    if case.name in MORE_LENIENT:
        assert (ours.status, theirs["status"]) == (200, 500)
    elif case.name in STRICTER:
        assert (ours.status, theirs["status"]) == (400, 200)
    elif theirs["status"] == 200:
        assert ours.status == 200, ours.body
        assert_same(ours.json, theirs)
    else:
        assert ours.status == 400
        assert ours.error


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    (mine,), (other,) = ours["outputs"], theirs["outputs"]
    assert (mine["name"], mine["datatype"]) == (other["name"], other["datatype"])
    # MLServer shows a list of n as n rows of one.
    assert mine["shape"] == other["shape"] or [*mine["shape"], 1] == other["shape"]
    dtype = NUMPY_TYPES.get(mine["datatype"])
    if dtype is None:
        assert mine["data"] == other["data"]
    else:
        np.testing.assert_array_equal(np.array(mine["data"], dtype), np.array(other["data"], dtype))
    if "id" in ours:
        assert ours["id"] == theirs["id"]
