"""Work in a worker's hands when it dies, freezes, or takes long: started elsewhere soon, run once if nobody dies."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from contract.streams import ACK_WAIT_S
from tests.support.cluster import FIXTURES, Cluster
from tests.support.cluster_http import TIMEOUT, infer, json_request
from tests.support.cluster_load import NUMBERS, assert_each_ended_once, burst

ELSEWHERE_WITHIN_S = 10.0


def repository_with(folder: Path, name: str, like: str, sleep_ms: int) -> Path:
    """A repository of one model: a fixture at another pace."""
    root = folder / "repository"
    shutil.copytree(FIXTURES / like, root / name)
    config = root / name / "config.pbtxt"
    text = config.read_text()
    old = text[text.index('"sleep_ms"') :].split("\n", 1)[0]
    config.write_text(text.replace(old, f'"sleep_ms" value {{ string_value: "{sleep_ms}" }} }}'))
    return root


async def test_sixty_requests_and_a_kill_midway_each_is_answered_once_and_none_waits_long(place: Cluster) -> None:
    gateway, (first, _) = place.serve("slow_500", num_workers=2)
    numbers = [next(NUMBERS) for _ in range(60)]
    calls = asyncio.create_task(burst(gateway.http_port, "slow_500", 60, timeout_s=30, numbers=numbers))
    await gateway.wait_metric("headrace_published_requests_total", 60)
    await asyncio.to_thread(place.wait_executed, "slow_500", 8)
    killed_unix_s = time.time()
    first.worker().kill()
    assert_each_ended_once(await calls, 30)
    counts = place.num_executed("slow_500")
    assert set(counts) == {str(n) for n in numbers}
    assert max(counts.values()) <= 2
    twice = {request for request, count in counts.items() if count == 2}
    second_starts = [
        e["unix_s"]
        for e in place.executions("slow_500")
        if e["unix_s"] > killed_unix_s and twice.intersection(e["ids"])
    ]
    assert all(s - killed_unix_s < ELSEWHERE_WITHIN_S for s in second_starts)


async def test_an_execution_of_five_times_ack_wait_runs_once(place: Cluster, tmp_path: Path) -> None:
    sleep_s = 5 * ACK_WAIT_S
    root = repository_with(tmp_path, "slow_long", "slow_500", int(sleep_s * 1000))
    gateway, _ = place.serve("slow_long", num_workers=2, repository=root)
    long, short = await asyncio.gather(
        infer(gateway.http_port, "slow_long", json_request([1.0], request_id="long"), [(TIMEOUT, "40000")]),
        infer(gateway.http_port, "slow_long", json_request([1.0], request_id="short"), [(TIMEOUT, "2500")]),
    )
    assert long.json["outputs"][0]["data"] == [1.0]
    assert long.took_s >= sleep_s
    assert (short.status, short.code) == (504, "deadline-exceeded")
    assert place.num_executed("slow_long")["long"] == 1
    assert gateway.metric("headrace_duplicate_answers_total") <= 1  # the short one's, that nobody waited for
