"""The pool over small stand-in workers: started, restarted, drained, killed when they don't listen."""

import asyncio
import sys
from pathlib import Path

from structlog.testing import capture_logs

from workers.pool import run_pool
from workers.settings import WorkerSettings

WAIT_S = 30.0


def command(folder: Path, body: str) -> list[str]:
    """A worker that notes its pid and then does `body`."""
    code = f"import os,pathlib,signal,sys,time\nfolder = pathlib.Path({str(folder)!r})\n" + (
        "settings = sys.stdin.readline()\n" + body.replace("NOTE", "(folder / str(os.getpid())).write_text(settings)")
    )
    return [sys.executable, "-c", code]


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def until(holds) -> None:
    for _ in range(int(WAIT_S / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become true")


async def test_a_pool_gives_its_settings_to_each_worker_and_drains_them(tmp_path: Path) -> None:
    settings = WorkerSettings(num_processes=2, group="g1")
    stop = asyncio.Event()
    body = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nNOTE\ntime.sleep(60)"
    with capture_logs() as logs:
        pool = asyncio.create_task(run_pool(settings, stop, command=command(tmp_path, body)))
        await until(lambda: len(list_files(tmp_path)) == 2)
        await until(lambda: all(f.read_text().endswith("\n") for f in list_files(tmp_path)))
        given = [WorkerSettings.model_validate_json(f.read_text()) for f in list_files(tmp_path)]
        assert given == [settings, settings]
        stop.set()
        await asyncio.wait_for(pool, WAIT_S)
    ended = [e for e in logs if e["event"] == "worker-ended"]
    assert [e["exit_code"] for e in ended] == [0, 0]


async def test_what_dies_is_started_again_with_growing_pauses(tmp_path: Path) -> None:
    stop = asyncio.Event()
    settings = WorkerSettings(restart_backoff_s=0.01)
    with capture_logs() as logs:
        pool = asyncio.create_task(run_pool(settings, stop, command=command(tmp_path, "NOTE\nsys.exit(3)")))
        await until(lambda: len([e for e in logs if e["event"] == "worker-died"]) >= 3)
        stop.set()
        await asyncio.wait_for(pool, WAIT_S)
    died = [e for e in logs if e["event"] == "worker-died"][:3]
    assert [(e["exit_code"], e["restart_in_s"]) for e in died] == [(3, 0.01), (3, 0.02), (3, 0.04)]


async def test_a_worker_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("workers.pool.KILL_AFTER_S", 0.1)
    stop = asyncio.Event()
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nNOTE\ntime.sleep(60)"
    with capture_logs() as logs:
        settings = WorkerSettings(drain_timeout_s=0.1)
        pool = asyncio.create_task(run_pool(settings, stop, command=command(tmp_path, body)))
        await until(lambda: len(list_files(tmp_path)) == 1)
        stop.set()
        await asyncio.wait_for(pool, WAIT_S)
    assert [e["signal"] for e in logs if e["event"] == "worker-ended"] == ["SIGKILL"]


async def test_a_command_that_cannot_start_is_tried_again_not_fatal(tmp_path: Path) -> None:
    stop = asyncio.Event()
    with capture_logs() as logs:
        settings = WorkerSettings(restart_backoff_s=0.01)
        pool = asyncio.create_task(run_pool(settings, stop, command=[str(tmp_path / "nothing")]))
        await until(lambda: len([e for e in logs if e["event"] == "worker-not-started"]) >= 2)
        stop.set()
        await asyncio.wait_for(pool, WAIT_S)
