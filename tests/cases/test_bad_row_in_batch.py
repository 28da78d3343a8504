"""One bad request among seven good ones of the same micro-batch: it alone hears of it."""

from __future__ import annotations

import asyncio

from tests.cases.conftest import Server
from tests.support.cluster_http import Connection, infer, json_request, request_bytes
from tests.support.cluster_load import assert_each_ended_once, burst

MODEL = "poison"
GOOD = 7


def largest_micro_batch(server: Server) -> int:
    return max(len(e["ids"]) for e in server.place.executions(MODEL))


async def test_a_row_the_model_raises_for_fails_alone(server: Server) -> None:
    for _ in range(3):
        bad, good = await asyncio.gather(
            infer(server.port, MODEL, json_request([666.0, 1.0], request_id="bad")), burst(server.port, MODEL, GOOD)
        )
        assert (bad.status, bad.code) == (500, "model-failed")
        assert "666" in bad.error
        assert_each_ended_once(good, 10)
    assert largest_micro_batch(server) >= 4, "they did share a micro-batch"


async def test_several_bad_rows_fail_alone(server: Server) -> None:
    bad = [infer(server.port, MODEL, json_request([666.0, float(n)])) for n in range(3)]
    *ends, good = await asyncio.gather(*bad, burst(server.port, MODEL, 5))
    assert [(e.status, e.code) for e in ends] == [(500, "model-failed")] * 3
    assert_each_ended_once(good, 10)


async def test_a_bad_row_in_a_request_of_many_fails_that_request_only(server: Server) -> None:
    rows = json_request([1.0, 2.0, 666.0, 4.0], shape=[4, 1])
    bad, good = await asyncio.gather(infer(server.port, MODEL, rows), burst(server.port, MODEL, 4))
    assert (bad.status, bad.code) == (500, "model-failed")
    assert_each_ended_once(good, 10)


async def test_a_wrong_inner_shape_is_refused_before_batching(server: Server) -> None:
    before = len(server.place.executions("ident_i32"))
    wrong = json_request([1, 2, 3], datatype="INT32", shape=[1, 3])
    right = json_request([1, 2, 3, 4], datatype="INT32", shape=[1, 4])
    bad, *good = await asyncio.gather(
        infer(server.port, "ident_i32", wrong), *(infer(server.port, "ident_i32", right) for _ in range(GOOD))
    )
    assert (bad.status, bad.code) == (400, "invalid-input")
    assert "INPUT0" in bad.error
    assert [a.data for a in good] == [[1, 2, 3, 4]] * GOOD
    executed = server.place.executions("ident_i32")[before:]
    assert sum(len(e["ids"]) for e in executed) == GOOD


async def test_a_mate_whose_caller_left_disturbs_nobody(server: Server) -> None:
    before = server.gateway.metric("headrace_published_requests_total")
    leaver = Connection(server.port)
    await leaver.open()
    body = json_request([5.0, 5.0], request_id="left")
    calls = asyncio.create_task(burst(server.port, MODEL, GOOD))
    await leaver.send(request_bytes(server.port, "POST", f"/v2/models/{MODEL}/infer", body))
    await server.gateway.wait_metric("headrace_published_requests_total", before + GOOD + 1)
    leaver.close()
    assert_each_ended_once(await calls, 10)
    await server.gateway.wait_metric("headrace_open_requests", 0)
