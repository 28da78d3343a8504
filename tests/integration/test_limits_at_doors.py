"""Refusals by configured limits on the HTTP door, from the first byte to the log line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from structlog.testing import capture_logs

from gateway.limits.gate import LEASE_US, Gate
from gateway.limits.local import LocalStore
from gateway.limits.match import Rulebook
from gateway.limits.rules import load_rules
from tests.support.http_kit import EchoCore, RawClient, floats, http, open_door
from tests.support.waiting import until

START_US = 1_000_000


class Limited:
    """A door before an echoing core with limits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_us = START_US
        self.core = EchoCore()

    async def open(self, text: str) -> RawClient:
        file = self.folder / "limits.yaml"
        file.write_text(text)
        book = Rulebook(load_rules(file), node="gw", prefix="t")
        self.door = await open_door(Gate(self.core, book, LocalStore(LEASE_US, lambda: self.now_us)))  # type: ignore[arg-type]
        return RawClient(self.door.port)


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Limited]:
    found = Limited(tmp_path)
    yield found
    await found.door.close()


async def test_a_refusal_says_when_to_come_back_and_that_is_true(limited: Limited) -> None:
    async with await limited.open("limits:\n  tenant:\n    default: {requests_per_minute: 5}\n") as client:
        replies = [await client.ask(http(floats(1))) for _ in range(8)]
        assert [r.status for r in replies] == [200] * 5 + [429] * 3
        assert replies[-1].headers["retry-after"] == "12"
        assert replies[-1].headers["x-ratelimit-limit-requests"] == "5"
        assert replies[-1].headers["x-ratelimit-remaining-requests"] == "0"
        assert "tenant-qps" in replies[-1].error
        assert len(limited.core.requests) == 5
        limited.now_us += 12_000_000 - 1000
        assert (await client.ask(http(floats(1)))).status == 429
        limited.now_us += 1000
        assert (await client.ask(http(floats(1)))).status == 200


async def test_a_slot_is_free_again_when_its_request_ended(limited: Limited) -> None:
    async with await limited.open("limits:\n  cluster: {concurrency: 1}\n") as first, RawClient(limited.door.port) as b:
        for _ in range(3):
            assert (await first.ask(http(floats(1)))).status == 200
        limited.core.is_holding = True
        first.send(http(floats(1)))
        await until(lambda: bool(limited.core.held))
        refused = await b.ask(http(floats(1)))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        limited.core.is_holding = False
        limited.core.held[0].answer()
        assert (await first.read()).status == 200
        assert (await b.ask(http(floats(1)))).status == 200


async def test_what_can_never_fit_is_not_to_be_tried_again(limited: Limited) -> None:
    async with await limited.open("limits:\n  cluster: {concurrency: 0}\n") as client:
        reply = await client.ask(http(floats(1)))
        assert reply.status == 429
        assert "retry-after" not in reply.headers
        assert reply.headers["x-should-retry"] == "false"


async def test_the_log_line_says_what_happened_who_did_it_and_where_to_change_it(limited: Limited) -> None:
    async with await limited.open("limits:\n  cluster: {requests_per_second: 1}\n") as client:
        await client.ask(http(floats(1)))
        with capture_logs() as events:
            await client.ask(http(floats(1)))
    (event,) = [e for e in events if e["event"] == "request-degraded"]
    assert (event["strategy"], event["code"]) == ("cluster-qps", 429)
    assert event["msg"] == "the current limit has been reached"
    assert event["configured_at"].endswith("limits.yaml:2")


async def test_openais_client_sees_a_rate_limit_and_gets_in_once_it_has_waited(limited: Limited) -> None:
    body = b'{"inputs": [{"name": "IN", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'
    async with await limited.open("limits:\n  cluster: {requests_per_second: 1}\n") as client:
        await client.ask(http(body))
        base = f"http://127.0.0.1:{limited.door.port}/v2/models/ident_f32"
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as caller:
            with pytest.raises(openai.RateLimitError) as refused:
                await caller.post("/infer", body=json.loads(body), cast_to=object)
            assert refused.value.response.headers["retry-after"] == "1"
            limited.now_us += 1_000_000
            await caller.post("/infer", body=json.loads(body), cast_to=object)
