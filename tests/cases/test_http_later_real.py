"""Requests answered later by a real worker: fetched over another connection, or cancelled before they run."""

from __future__ import annotations

import asyncio
import time

from tests.cases.conftest import Server
from tests.support.cluster import known_good
from tests.support.cluster_http import Answered, ask, infer, json_request

MODEL = "slow_500"
ASYNC = [("prefer", "respond-async")]
WITHIN_S = 60.0


async def accepted(server: Server, request_id: str) -> str:
    answer = await infer(server.port, MODEL, json_request([3.0], request_id=request_id), ASYNC)
    assert answer.status == 202, answer.body
    return answer.headers["location"]


async def ended(server: Server, where: str) -> Answered:
    end_s = time.monotonic() + WITHIN_S
    while (answer := await ask(server.port, "GET", where)).headers["headrace-request-state"] == "running":
        assert answer.status == 202
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)
    return answer


async def test_answers_are_fetched_when_they_are_there(server: Server) -> None:
    places = [await accepted(server, f"later-{n}") for n in range(4)]
    answers = await asyncio.gather(*(ended(server, where) for where in places))
    assert [(a.status, a.json["id"], a.data) for a in answers] == [(200, f"later-{n}", [3.0]) for n in range(4)]
    assert (await ask(server.port, "DELETE", places[0])).status == 204
    assert (await ask(server.port, "GET", places[0])).status == 410


async def test_a_deadline_ends_it_and_is_told_where_the_answer_would_be(server: Server) -> None:
    body = json_request([3.0])
    answer = await infer(server.port, MODEL, body, [*ASYNC, ("headrace-timeout-ms", "60")])
    found = await ended(server, answer.headers["location"])
    assert (found.status, found.code) == (504, "deadline-exceeded")


async def test_what_is_deleted_before_it_runs_is_never_executed(server: Server) -> None:
    num_before = len(server.place.executions(MODEL))
    first = await accepted(server, "runs")
    server.place.wait_executed(MODEL, num_before + 1)
    behind = [await accepted(server, f"waits-{n}") for n in range(3)]
    for where in behind:
        assert (await ask(server.port, "DELETE", where)).status == 204
    assert (await ended(server, first)).status == 200
    await known_good(server.gateway)
    last = await accepted(server, "last")
    assert (await ended(server, last)).status == 200
    counts = server.place.num_executed(MODEL)
    assert counts["runs"] == counts["last"] == 1
    assert not {"waits-0", "waits-1", "waits-2"} & set(counts)
