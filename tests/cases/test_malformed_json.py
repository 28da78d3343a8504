"""Bodies that are no inference request: 400 with the field named, at once, and the server stays up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.conftest import Server
from tests.support.cluster import known_good
from tests.support.cluster_http import Answered, Connection, infer

SHAPES = ['"-1"', "null", "{}", "[-1,2]", "[1.5,2]", '["1","2"]', "[true,2]", "[]", "[[1],[2]]"]
SHAPES += ["[9223372036854775807,2]", "[18446744073709551616,2]", "[3037000500,3037000500]", "1", "true", "[1,2,1]"]
INPUTS = ["{}", '"x"', "null", "[]", "[[]]", "[null]", "[1]", '["INPUT0"]']
BODIES = ["[]", '"x"', "42", "", "{", "null", "{}", "\ufeff{}", '{"inputs":[{"shape":[1e400]}]}']
BODIES += ["[" * 100_000, '{"inputs":[' + "{" * 50_000]


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0], **fields}


def request(**fields: Any) -> str:
    return json.dumps({"inputs": [tensor(**fields)]})


async def refused(server: Server, body: str | bytes) -> Answered:
    """The refusal's form: 400, JSON, one text, quick; the process and its worker are the same afterwards."""
    raw = body if isinstance(body, bytes) else body.encode()
    answer = await infer(server.port, "ident_f32", raw)
    assert answer.status == 400, (answer.status, answer.body[:300])
    assert answer.error
    assert answer.code == "invalid-input"
    assert answer.took_s < 1
    assert len(answer.body) < 2_000, "a refusal does not echo the whole request"
    assert server.gateway.get("/v2/health/live") == 200
    await known_good(server.gateway)
    assert [w.pid for w in server.place.parts[-1].workers()] == [server.worker.pid]
    return answer


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_malformed_shape_is_refused_by_the_name_of_its_input(server: Server, shape: str) -> None:
    answer = await refused(server, request(shape="SHAPE").replace('"SHAPE"', shape))
    assert "INPUT0" in answer.error
    assert "shape" in answer.error


async def test_an_absent_shape_is_refused_by_the_name_of_its_input(server: Server) -> None:
    body = tensor()
    del body["shape"]
    answer = await refused(server, json.dumps({"inputs": [body]}))
    assert "INPUT0" in answer.error
    assert "shape" in answer.error


@pytest.mark.parametrize("inputs", INPUTS)
async def test_inputs_that_are_no_list_of_tensors_are_refused(server: Server, inputs: str) -> None:
    answer = await refused(server, f'{{"inputs": {inputs}}}')
    assert "input" in answer.error


async def test_absent_inputs_are_refused(server: Server) -> None:
    assert "inputs" in (await refused(server, '{"id": "1"}')).error


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
async def test_a_body_that_is_no_request_is_refused(server: Server, body: str) -> None:
    await refused(server, body)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "OTHER"},
        {"name": 3},
        {"name": None},
        {"datatype": "FP99"},
        {"datatype": "INT32"},
        {"datatype": None},
        {"datatype": ["FP32"]},
        {"data": [1.0]},
        {"data": [1.0, 2.0, 3.0]},
        {"data": "12"},
        {"data": None},
        {"data": {"0": 1}},
        {"data": ["1", "2"]},
        {"data": [None, 1.0]},
        {"data": [True, False]},
        {"data": [[1.0], 2.0]},
        {"parameters": []},
        {"shape": [9, 1], "data": [1.0] * 9},
    ],
    ids=repr,
)
async def test_a_tensor_that_does_not_fit_is_refused_before_anything_runs(
    server: Server, fields: dict[str, Any]
) -> None:
    await refused(server, request(**fields))


async def test_the_same_input_twice_is_refused(server: Server) -> None:
    assert "INPUT0" in (await refused(server, json.dumps({"inputs": [tensor(), tensor()]}))).error


async def test_bytes_that_are_no_utf8_are_refused(server: Server) -> None:
    await refused(server, b'{"inputs": [{"name": "\xff\xfe"}]}')


async def test_after_every_refusal_the_same_connection_goes_on(server: Server) -> None:
    connection = Connection(server.port)
    path = "/v2/models/ident_f32/infer"
    for body in [request(shape=s) for s in (None, -1, [1.5, 2])] + ["[]", "{"]:
        assert (await connection.ask("POST", path, body.encode())).status == 400
        assert (await connection.ask("POST", path, request().encode())).data == [1.0, 2.0]
    connection.close()
