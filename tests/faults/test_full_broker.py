"""The broker's memory is used up: said at once and with when to come back, and over when it is over."""

from __future__ import annotations

import asyncio

import numpy as np

from contract.streams import MIB
from tests.support.cluster import Cluster, known_good
from tests.support.cluster_http import TIMEOUT, Answered, binary_request, infer, json_request
from tests.support.cluster_load import assert_each_ended_once, burst


def of_bytes(num_bytes: int, *, rows: int = 1) -> tuple[bytes, list[tuple[str, str]]]:
    body, headers = binary_request(np.arange(num_bytes // 4, dtype=np.float32).reshape(rows, -1))
    return body, [*headers, (TIMEOUT, "30000")]


async def test_an_online_queue_full_of_messages_refuses_with_queue_full_and_serves_the_rest(place: Cluster) -> None:
    place.broker_settings = {"online_max_msgs": 4}
    gateway, _ = place.serve("slow_500", "ident_f32")
    body, headers = of_bytes(8 * 4, rows=8)
    answers = await asyncio.gather(*(infer(gateway.http_port, "slow_500", body, headers) for _ in range(40)))
    served = [a for a in answers if a.status == 200]
    refused = [a for a in answers if a.status != 200]
    assert {(a.status, a.code) for a in refused} == {(503, "queue-full")}
    assert all(a.took_s < 1 and int(a.headers["retry-after"]) >= 1 for a in refused)
    assert "full" in refused[0].error
    assert 4 <= len(served) <= 12  # four lie in the stream, some more are in the worker's hands
    await known_good(gateway)
    assert_each_ended_once(await burst(gateway.http_port, "slow_500", 4), 10)


async def test_an_online_queue_full_of_bytes_refuses_with_queue_full(place: Cluster) -> None:
    place.broker_settings = {"online_max_bytes": 4 * MIB}
    gateway, _ = place.serve("slow_500", "ident_f32")
    body, headers = of_bytes(MIB // 2, rows=8)
    answers = await asyncio.gather(*(infer(gateway.http_port, "slow_500", body, headers) for _ in range(30)))
    refused = [a for a in answers if a.status != 200]
    assert {(a.status, a.code) for a in refused} == {(503, "queue-full")}
    assert all(a.took_s < 2 for a in refused)
    assert sum(a.status == 200 for a in answers) >= 6
    await known_good(gateway)


async def test_large_payloads_find_the_blob_memory_full_or_too_small_and_hear_which(place: Cluster) -> None:
    place.broker_settings = {"blob_max_bytes": 8 * MIB}
    gateway, _ = place.serve("ident_f32", "grow")
    # Alone it is larger than all there is: no retry can change that.
    body, headers = of_bytes(9 * MIB)
    never = await infer(gateway.http_port, "ident_f32", body, headers)
    assert (never.status, never.code) == (413, "too-large")
    assert str(9 * MIB) in never.error
    assert str(8 * MIB) in never.error
    assert never.took_s < 1
    # So is this answer, though it is asked for in a few bytes.
    count = json_request([9 * MIB // 4], name="COUNT", datatype="INT64", shape=[1])
    never = await infer(gateway.http_port, "grow", count)
    assert (never.status, never.code) == (413, "too-large")
    assert str(9 * MIB) in never.error
    assert str(8 * MIB) in never.error
    # Several at once don't fit together: what is refused is refused cleanly, the rest is answered right.
    body, headers = of_bytes(3 * MIB)
    answers = await asyncio.gather(*(infer(gateway.http_port, "ident_f32", body, headers) for _ in range(8)))
    for answer in answers:
        assert is_clean(answer, body), (answer.status, answer.code, answer.body[:300])
    assert any(a.status == 200 for a in answers), "those that fill it together make way for each other"
    # And it is over when they are gone.
    assert (await infer(gateway.http_port, "ident_f32", body, headers)).status == 200
    await known_good(gateway)


def is_clean(answer: Answered, body: bytes) -> bool:
    if answer.status == 200:
        return answer.binary() == body[-3 * MIB :]
    return answer.status == 503 and answer.took_s < 10 and bool(answer.error)
