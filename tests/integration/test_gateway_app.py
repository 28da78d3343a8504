"""The gateway as a process: starts with one line, serves two doors, drains on SIGTERM, ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.model_config import TensorSpec
from contract.subjects import DoorAddress
from gateway.settings import GatewaySettings
from tests.support.broker import Broker, free_port, listens
from tests.support.gateway_kit import card
from tests.support.lane_worker import LaneWorker, eventually
from transport.connection import connect
from transport.nats_transport import NatsTransport

WITHIN_S = 30.0
TINY = card(inputs=(TensorSpec("x", "FP32", (4,)),), outputs=(TensorSpec("y", "FP32", (4,)),))
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@dataclass
class Process:
    """A gateway process."""

    child: asyncio.subprocess.Process
    settings: GatewaySettings
    log: Path
    ended: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self.child.wait())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.http_port}"

    async def exit_code(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self.ended), WITHIN_S)

    def events(self) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line["event"] for line in lines]


@contextlib.asynccontextmanager
async def gateway(folder: Path, server: Broker, **settings: Any) -> AsyncIterator[Process]:
    found = {"http_port": free_port(), "metrics_port": free_port(), "broker": server.settings, **settings}
    made = GatewaySettings(**found)
    log = folder / "gateway.log"
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.app", stdin=asyncio.subprocess.PIPE, stderr=output
        )
    process = Process(child, made, log)
    assert child.stdin is not None
    child.stdin.write(made.model_dump_json().encode() + b"\n")
    try:
        yield process
    finally:
        if child.returncode is None:
            child.kill()
        await process.ended
        child.stdin.close()


async def serving(process: Process) -> None:
    async def is_open() -> bool:
        assert process.child.returncode is None, process.log.read_text()
        return await listens(process.settings.http_port)

    await eventually(is_open, WITHIN_S)


@pytest.fixture
async def transport(broker: Broker) -> AsyncIterator[NatsTransport]:
    made = await connect(broker.settings, "worker")
    yield made
    await made.close()


async def test_both_doors_serve_and_sigterm_ends_it_in_order(
    tmp_path: Path, broker: Broker, transport: NatsTransport
) -> None:
    worker = await LaneWorker(transport, TINY).start()
    async with gateway(tmp_path, broker) as process, httpx.AsyncClient(base_url=process.url) as client:
        await serving(process)
        assert (await client.get("/v2/health/ready")).status_code == 200
        answer = await client.post("/v2/models/tiny/infer", json=BODY)
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4]
        over_nats = await transport.request(
            DoorAddress("default", "default", "tiny").subject, json.dumps(BODY).encode(), 10
        )
        assert json.loads(over_nats)["outputs"][0]["data"] == [1, 2, 3, 4]
        metrics = (await client.get(f"http://127.0.0.1:{process.settings.metrics_port}/metrics")).text
        assert "headrace_published_requests_total 2.0" in metrics
        # One is in flight when the signal comes; it is answered, then the process goes.
        worker.echoes = False
        waiting = asyncio.create_task(client.post("/v2/models/tiny/infer", json=BODY))
        await eventually(lambda: worker.num_requests() == 3)
        process.child.send_signal(signal.SIGTERM)
        await eventually(lambda: "draining" in process.events())
        worker.echo(worker.received[-1])
        answer = await asyncio.wait_for(waiting, WITHIN_S)
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
        assert await process.exit_code() == 0
        assert process.events()[-1] == "stopped"


async def test_what_a_drain_could_not_finish_in_time_is_answered_503(
    tmp_path: Path, broker: Broker, transport: NatsTransport
) -> None:
    worker = await LaneWorker(transport, TINY, echoes=False).start()
    async with (
        gateway(tmp_path, broker, drain_timeout_s=1.0) as process,
        httpx.AsyncClient(base_url=process.url) as client,
    ):
        await serving(process)
        waiting = asyncio.create_task(client.post("/v2/models/tiny/infer", json=BODY, timeout=WITHIN_S))
        await eventually(lambda: worker.num_requests() == 1)
        process.child.send_signal(signal.SIGTERM)
        answer = await asyncio.wait_for(waiting, WITHIN_S)
        assert (answer.status_code, answer.headers["headrace-error"]) == (503, "draining")
        assert await process.exit_code() == 0


async def test_it_ends_with_its_parent(tmp_path: Path, broker: Broker) -> None:
    async with gateway(tmp_path, broker) as process:
        await serving(process)
        assert process.child.stdin is not None
        process.child.stdin.close()
        assert await process.exit_code() == 0


async def test_it_waits_for_a_broker_that_comes_later(tmp_path: Path, broker: Broker) -> None:
    broker.kill()
    impatient = broker.settings.model_copy(update={"connect_timeout_s": 1.0})
    async with gateway(tmp_path, broker, broker=impatient) as process:
        await eventually(lambda: "broker-not-there" in process.events(), WITHIN_S)
        await broker.start()
        await serving(process)


async def test_open_doors_to_strangers_are_refused_at_start(tmp_path: Path, broker: Broker) -> None:
    async with gateway(tmp_path, broker, host="0.0.0.0") as process:
        assert await process.exit_code() == 1
        assert "tenants_file" in process.log.read_text()


async def test_a_taken_port_is_said_and_nothing_stays(tmp_path: Path, broker: Broker) -> None:
    taken = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    try:
        async with gateway(tmp_path, broker, http_port=port) as process:
            assert await process.exit_code() == 1
            assert str(port) in process.log.read_text()
    finally:
        taken.close()
