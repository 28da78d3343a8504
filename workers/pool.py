"""A pool of worker processes: starts them, restarts what dies with growing pauses, drains all. Serves nothing itself.

    python -m workers.pool   settings as one JSON line on stdin; the end of stdin means that the parent died

No orphans: each worker holds the read end of a pipe whose other end only this process has, and drains when it closes,
however this process ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog
import uvloop

from transport.logs import configure_logs
from workers.backoff import Backoff
from workers.parent import read_settings, watch_parent
from workers.repository.saved import SLOT_FOLDER
from workers.settings import WorkerSettings

WORKER_COMMAND: Final = (sys.executable, "-m", "workers.worker")
KILL_AFTER_S: Final = 5.0
"""How much longer than its drain time-out a worker may take before it is killed."""

log = structlog.get_logger()


async def run_pool(settings: WorkerSettings, stop: asyncio.Event, *, command: Sequence[str] = WORKER_COMMAND) -> None:
    """Keep `settings.num_processes` workers alive until `stop`, then drain them; returns when all have ended."""
    with ExitStack() as stack:
        # What was loaded on request outlives the worker that was asked, in a folder of its slot's own.
        folders = _slot_folders(settings, stack)
        async with asyncio.TaskGroup() as group:
            for slot in range(settings.num_processes):
                environment = {SLOT_FOLDER: str(folders[slot])} if folders else {}
                group.create_task(_keep_alive(slot, settings, stop, command, environment))


def _slot_folders(settings: WorkerSettings, stack: ExitStack) -> list[Path]:
    if settings.model_control_mode != "explicit":
        return []
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-pool-", ignore_cleanup_errors=True)))
    folders = [folder / str(slot) for slot in range(settings.num_processes)]
    for each in folders:
        each.mkdir()
    return folders


async def _keep_alive(
    slot: int, settings: WorkerSettings, stop: asyncio.Event, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    backoff = Backoff(settings.restart_backoff_s)
    while not stop.is_set():
        started_s = time.monotonic()
        try:
            code = await _run_worker(slot, settings, stop, command, environment)
        except OSError as e:
            log.error("worker-not-started", slot=slot, error=str(e))
            code = -1
        if stop.is_set():
            return
        lived_s = time.monotonic() - started_s
        pause_s = backoff.pause_s(lived_s)
        log.warning("worker-died", slot=slot, lived_s=round(lived_s, 3), restart_in_s=pause_s, **describe_exit(code))
        await _wait(stop, pause_s)


async def _run_worker(
    slot: int, settings: WorkerSettings, stop: asyncio.Event, command: Sequence[str], environment: Mapping[str, str]
) -> int:
    """One worker's life; its exit code, negative for a signal."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    log.info("worker-started", slot=slot, pid=process.pid)
    assert process.stdin is not None
    process.stdin.write(settings.model_dump_json().encode() + b"\n")
    ended = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=settings.drain_timeout_s + KILL_AFTER_S)
        if not ended.done():
            log.error("worker-killed", slot=slot, pid=process.pid, after_s=settings.drain_timeout_s + KILL_AFTER_S)
            process.kill()
        code = await ended
    finally:
        stopping.cancel()
        process.stdin.close()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if stop.is_set():
        log.info("worker-ended", slot=slot, pid=process.pid, **describe_exit(code))
    return code


def describe_exit(code: int) -> dict[str, object]:
    """Log fields for an exit code as `wait` gives it: a signal's name, or the code."""
    if code >= 0:
        return {"exit_code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": str(-code)}


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return


async def _main(settings: WorkerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watch_parent(stop.set)
    log.info("pool-started", num_processes=settings.num_processes)
    await run_pool(settings, stop)
    log.info("pool-ended")


def main() -> None:
    """Run a pool until SIGTERM, SIGINT or the end of stdin."""
    settings = read_settings()
    configure_logs(settings.log_level, process="pool", group=settings.group)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(settings))


if __name__ == "__main__":
    main()
