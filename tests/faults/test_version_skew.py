"""Gateway and worker of neighbouring format versions, during an upgrade: each reads what the other says."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster import Cluster, known_good
from tests.support.cluster_http import TIMEOUT, infer, json_request
from tests.support.cluster_load import assert_each_ended_once, burst

SKEWED = "tests/support/cluster_skew.py"


@pytest.mark.parametrize(
    ("gateway_command", "worker_command"),
    [
        pytest.param(("-m", "gateway.app"), (SKEWED, "workers.worker"), id="worker-is-newer"),
        pytest.param((SKEWED, "gateway.app"), ("-m", "workers.worker"), id="worker-is-older"),
        pytest.param((SKEWED, "gateway.app"), (SKEWED, "workers.worker"), id="both-are-newer"),
    ],
)
async def test_a_worker_one_minor_version_away_works_with_the_gateway(
    place: Cluster, gateway_command: tuple[str, ...], worker_command: tuple[str, ...]
) -> None:
    gateway = place.start_gateway(command=gateway_command, wait=False)
    place.start_pool(["slow_50", "poison", "ident_f32"], command=worker_command)
    place.wait_gateway(gateway)
    place.wait_ready(gateway, "slow_50", "poison", "ident_f32")
    assert_each_ended_once(await burst(gateway.http_port, "slow_50", 40), 10)
    failed = await infer(gateway.http_port, "poison", json_request([666.0]))
    assert (failed.status, failed.code) == (500, "model-failed")
    # Cancels cross the border too.
    left = await asyncio.gather(
        *(infer(gateway.http_port, "slow_50", json_request([1.0]), [(TIMEOUT, "1")]) for _ in range(4))
    )
    assert {a.status for a in left} <= {200, 504}
    await known_good(gateway)
    assert gateway.metric("headrace_unreadable_replies_total") == 0
