"""A whole `headrace up` for a test: free ports, a folder of its own, every process gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.client import Client
from headrace.runfile import RunNote, read_note

READY_WITHIN_S = 90.0
STOP_WITHIN_S = 60.0
REPOSITORY = Path(__file__).parents[2] / "model_repository"
FIXTURES = Path(__file__).parents[1] / "models"


@dataclass
class Running:
    """A launcher that serves."""

    process: subprocess.Popen[bytes]
    note: RunNote
    data_dir: Path

    @property
    def http_url(self) -> str:
        return self.note.http_url

    @property
    def broker_url(self) -> str:
        return self.note.broker_url

    @property
    def output(self) -> str:
        """What it printed so far."""
        return (self.data_dir.parent / "up.txt").read_text()

    def client(self, timeout_s: float = 30.0) -> Client:
        return Client(self.http_url, timeout_s=timeout_s)

    def processes(self) -> list[psutil.Process]:
        """The launcher and everything under it."""
        launcher = psutil.Process(self.process.pid)
        return [launcher, *launcher.children(recursive=True)]

    def workers(self) -> list[psutil.Process]:
        """The worker processes themselves."""
        return [p for p in self.processes() if "workers.worker" in p.cmdline()]

    def part(self, needle: str) -> psutil.Process:
        """The one process whose command line holds `needle`: `gateway.app`, `workers.pool`, `nats-server`."""
        (found,) = [p for p in self.processes() if any(needle in word for word in p.cmdline())]
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_WITHIN_S)


@contextlib.contextmanager
def headrace_up(
    folder: Path, repository: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run it while the block runs. Ports are free ones; `arguments` go to `headrace up`."""
    data_dir = folder / "data"
    command = [sys.executable, "-m", "headrace", "up", str(repository), "--data-dir", str(data_dir)]
    command += ["--http-port", "0", "--metrics-port", "0", "--broker-port", "0", *arguments]
    with (folder / "up.txt").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    family: list[psutil.Process] = []
    try:
        note = _await_note(process, data_dir, folder / "up.txt")
        running = Running(process, note, data_dir)
        family = running.processes()
        yield running
    finally:
        _end(process, family)


def _await_note(process: subprocess.Popen[bytes], data_dir: Path, output: Path) -> RunNote:
    end_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end_s:
        note = read_note(data_dir)
        if note is not None and note.pid == process.pid:
            return note
        if process.poll() is not None:
            raise AssertionError(f"`headrace up` ended with code {process.returncode}:\n{output.read_text()}")
        time.sleep(0.05)
    raise AssertionError(f"`headrace up` not ready after {READY_WITHIN_S:.0f} s:\n{output.read_text()}")


def _end(process: subprocess.Popen[bytes], family: list[psutil.Process]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*family, *psutil.Process(process.pid).children(recursive=True)]
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
    if process.poll() is None:
        process.kill()
        process.wait(5)
    for survivor in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(family, timeout=5)
