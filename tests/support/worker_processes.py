"""Workers and pools as processes of their own, and what their heartbeats say."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.envelope import unpack
from contract.messages import WorkerBeat
from contract.subjects import WORKER_BEATS
from transport.base import Transport
from workers.settings import WorkerSettings

MODELS = Path(__file__).parent.parent / "models"
WAIT_S = 60.0
POLL_S = 0.02


class Process:
    """`python -m workers.worker` or `workers.pool`, fed its settings through a pipe that stays open."""

    def __init__(self, module: str, settings: WorkerSettings, folder: Path) -> None:
        self.folder = folder
        env = {**os.environ, "HEADRACE_COUNTER_DIR": str(folder)}
        self.log = folder / f"{module}.{len(list(folder.glob('*.log')))}.log"
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stderr=log, env=env)
        assert self.popen.stdin is not None
        self.popen.stdin.write(settings.model_dump_json().encode() + b"\n")
        self.popen.stdin.flush()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    async def ended(self, timeout_s: float = WAIT_S) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.to_thread(self.popen.wait, timeout_s)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event.get("event") == name]

    def end(self) -> None:
        """For the test's clean-up, whatever its state."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.kill()
            self.popen.wait(10)
        if self.popen.stdin is not None:
            self.popen.stdin.close()


class Beats:
    """The last heartbeat of each worker."""

    def __init__(self) -> None:
        self.last: dict[int, WorkerBeat] = {}
        self.num: dict[int, int] = {}

    async def start(self, transport: Transport) -> "Beats":
        await transport.subscribe(WORKER_BEATS, self._on_beat)
        return self

    def _on_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        beat, _ = unpack(WorkerBeat, payload)
        self.last[beat.pid] = beat
        self.num[beat.pid] = self.num.get(beat.pid, 0) + 1

    async def ready(self, pid: int, *models: str) -> WorkerBeat:
        """Wait until the worker serves these models."""

        def is_ready() -> bool:
            beat = self.last.get(pid)
            ready = {c.config.name for c in beat.models if c.ready_versions} if beat is not None else set()
            return set(models) <= ready

        await until(is_ready)
        return self.last[pid]

    def ready_pids(self, model: str) -> list[int]:
        return [
            pid
            for pid, beat in self.last.items()
            if any(c.config.name == model and c.ready_versions for c in beat.models) and is_alive(pid)
        ]


async def until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait until something is true that no event tells."""
    for _ in range(int(timeout_s / POLL_S)):
        if holds():
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError("it did not become true")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def executions(folder: Path, model: str) -> list[dict[str, Any]]:
    """What the fixture model noted about its executions."""
    file = folder / f"{model}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
