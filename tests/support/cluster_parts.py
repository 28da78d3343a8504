"""Gateways and worker pools as processes of a test's own, one by one, with their pids: so that faults can be injected.

Each gets its settings as one JSON line on stdin, as `headrace up` gives them; stdin stays open while the part lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
POLL_S = 0.02
NUM_LAST_LINES = 25


class Part:
    """One process and, for a pool, what it starts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        settings_json: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(settings_json.encode() + b"\n")
        self.process.stdin.flush()
        self._family: dict[int, psutil.Process] = {}
        self.was_ended = False
        """By the test, on purpose."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        """Everything under it, also what it has left behind by now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                self._family[child.pid] = child
        return [p for p in self._family.values() if is_alive(p)]

    def workers(self) -> list[psutil.Process]:
        """A pool's worker processes."""
        return [p for p in self.family() if "workers.worker" in command_line(p)]

    def worker(self) -> psutil.Process:
        """The only worker, once it runs."""
        wait_until(lambda: len(self.workers()) == 1, f"{self.name} has one worker")
        return self.workers()[0]

    def kill(self) -> None:
        """kill -9 of the process alone."""
        self.was_ended = True
        self.family()
        self.process.kill()
        self.process.wait(10)

    def terminate(self, within_s: float = 45.0) -> int:
        """SIGTERM; the exit code."""
        self.was_ended = True
        self.family()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)

    def end(self) -> None:
        """Whatever is left of it, at once."""
        family = self.family()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not any(map(is_alive, family)), f"{self.name} has ended", 10)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found

    def has_logged(self, event: str) -> bool:
        return any(e.get("event") == event for e in self.events())

    def faults(self) -> list[str]:
        """Tracebacks and events that carry an exception: faults of ours, whatever was injected."""
        lines = self.log.read_text(errors="replace").splitlines()
        # A model's own words carry its name before them and are its own business.
        return [line for line in lines if '"exception"' in line or line.startswith("Traceback (most recent")]

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-NUM_LAST_LINES:]
        return f"--- {self.name}\n" + "\n".join(line[:500] for line in lines)


def wait_until(holds: Callable[[], object], what: str, within_s: float = 45.0) -> None:
    """Poll something that no event tells; a sentence in `what`."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(POLL_S)


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.cmdline()
    return []
