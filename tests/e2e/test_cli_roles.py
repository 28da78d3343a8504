"""Gateway and workers as processes of their own, started by their commands, on a broker that was there before."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from headrace.client import Client
from headrace.ports import choose_port
from tests.support.broker import Broker
from tests.support.running import FIXTURES

READY_WITHIN_S = 60.0
X = np.ones((1, 16), np.float32)


@contextlib.contextmanager
def role(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until it is told to stop."""
    with (cwd / f"{arguments[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stderr=log,
            env=dict(os.environ),
        )
    try:
        yield process
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


async def test_roles_started_apart_answer_together_and_end_on_sigterm(broker: Broker, tmp_path: Path) -> None:
    port, metrics = (choose_port(what, 0, host="127.0.0.1", is_fixed=True) for what in ("HTTP", "metrics"))
    at_broker = ("--set", f"broker.servers={broker.url}")
    ports = ("--http-port", str(port), "--metrics-port", str(metrics))
    with (
        role("worker", str(FIXTURES), *at_broker, "--set", "worker.models=add_sub", cwd=tmp_path) as worker,
        role("gateway", *at_broker, *ports, cwd=tmp_path) as gateway,
        Client(f"http://127.0.0.1:{port}") as client,
    ):
        end_s = time.monotonic() + READY_WITHIN_S
        while not client.is_ready("add_sub"):
            assert time.monotonic() < end_s, (tmp_path / "gateway.log").read_text() + (
                tmp_path / "worker.log"
            ).read_text()
            await asyncio.sleep(0.05)
        assert np.array_equal(client.infer("add_sub", INPUT0=X, INPUT1=X).outputs["OUTPUT0"], X + X)
        for process in (gateway, worker):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.mark.parametrize("command", [("gateway", "--http-port", "0", "--set", "gateway.host=0.0.0.0")])
def test_a_gateway_open_to_strangers_without_keys_does_not_start(command: tuple[str, ...], tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "headrace", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert "tenants_file" in refused.stderr
