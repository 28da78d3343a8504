"""Processes of ours that must not outlive us: started with their settings, stopped in order, swept with their group.

A Python child watches its stdin and ends when it closes, that is also when we are killed. Other programs get the
kernel's parent-death signal, where it has one (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

_PR_SET_PDEATHSIG = 1
LAST_LINES = 15


@dataclass(slots=True)
class Child:
    """A running process and where its output goes."""

    name: str
    process: asyncio.subprocess.Process
    log_file: Path | None
    ended: asyncio.Task[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ended = asyncio.create_task(self.process.wait())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def last_words(self) -> str:
        """The end of its log."""
        if self.log_file is None:
            return ""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-LAST_LINES:])
        return ""

    async def stop(self, timeout_s: float) -> None:
        """Ask it to end, make it end after `timeout_s`; nothing of its process group is left afterwards."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM)
            await asyncio.wait({self.ended}, timeout=timeout_s)
        self._kill_group()
        await self.ended
        if self.process.stdin is not None:
            self.process.stdin.close()

    def kill(self) -> None:
        """End it and its group at once."""
        self._kill_group()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


async def start_module(name: str, module: str, settings: BaseModel, log_file: Path | None) -> Child:
    """Start `python -m module` with its settings as one line on a stdin that stays open as long as we live."""
    # Safe path: a folder named `gateway` in the user's working directory must not shadow ours.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    child = await _start(name, [sys.executable, "-m", module], log_file, environment=environment, has_stdin=True)
    assert child.process.stdin is not None
    child.process.stdin.write(settings.model_dump_json().encode() + b"\n")
    return child


async def start_program(name: str, command: Sequence[str], log_file: Path | None) -> Child:
    """Start a program that knows nothing of us."""
    return await _start(name, command, log_file, preexec=_die_with_parent())


async def _start(
    name: str,
    command: Sequence[str],
    log_file: Path | None,
    *,
    environment: dict[str, str] | None = None,
    has_stdin: bool = False,
    preexec: Callable[[], None] | None = None,
) -> Child:
    """In a session of its own: Ctrl-C reaches us alone, and we stop the others in order."""
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log_file else None
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=preexec,
        )
    finally:
        if output is not None:
            os.close(output)
    return Child(name, process, log_file)


def _die_with_parent() -> Callable[[], None] | None:
    """What a child runs before its program: ask the kernel for SIGKILL when its parent ends. None off Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask
