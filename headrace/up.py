"""`headrace up`: run a launcher until Ctrl-C, a signal or a death, and say what can be done meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from headrace.broker import NoBinary
from headrace.config.settings import HeadraceSettings
from headrace.launcher import Launcher, Running, StartFailed
from headrace.ports import PortTaken
from headrace.runfile import AlreadyRunning
from headrace.say import Say

EXIT_FAILED = 1
EXAMPLE_MODEL = "toxicity"
EXAMPLE_TEXT = "you are an idiot"

T = TypeVar("T")

CANT_START = (StartFailed, PortTaken, AlreadyRunning, NoBinary)


async def up(settings: HeadraceSettings, say: Say, *, show_logs: bool = False) -> int:
    """Run until told to stop; the exit code."""
    async with stop_signals() as (stop, on_second):
        launcher = Launcher(settings, say, show_logs=show_logs)
        on_second.append(launcher.kill)
        code = 0
        try:
            running = await unless(stop, launcher.start())
            if running is not None:
                say.text(_invitation(running, settings))
                death = await unless(stop, launcher.wait())
                if death is not None:
                    say.warning(death)
                    code = EXIT_FAILED
        except CANT_START as e:
            say.warning(str(e))
            code = EXIT_FAILED
        finally:
            if stop.is_set():
                say.step("stop", "finishing what was accepted")
            await launcher.stop()
            say.step("stopped", "none of its processes is left")
    return code


def commands(running: Running) -> tuple[str, str, str]:
    """Three ways to ask the same question: curl, Python, NATS."""
    body = f'{{"inputs":[{{"name":"text","datatype":"BYTES","shape":[1,1],"data":["{EXAMPLE_TEXT}"]}}]}}'
    code = (
        f'from headrace.client import Client; print(Client("{running.http_url}")'
        f'.infer("{EXAMPLE_MODEL}", text=["{EXAMPLE_TEXT}"]).outputs)'
    )
    return (
        f"curl -s {running.http_url}/v2/models/{EXAMPLE_MODEL}/infer -d {shlex.quote(body)}",
        f"{program('python')} -c {shlex.quote(code)}",
        f"{program('headrace')} infer {EXAMPLE_MODEL} --text {shlex.quote(EXAMPLE_TEXT)} --nats {running.broker_url}",
    )


def program(name: str) -> str:
    """How to call a program of this environment from the shell that started us: by name if the shell finds it."""
    ours = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).parent.resolve() == ours.parent.resolve():
        return name
    return str(ours.relative_to(Path.cwd())) if ours.is_relative_to(Path.cwd()) else str(ours)


@contextlib.asynccontextmanager
async def stop_signals() -> AsyncIterator[tuple[asyncio.Event, list[Callable[[], None]]]]:
    """An event that the first SIGINT, SIGTERM or SIGHUP sets, and what to call at the second."""
    stop, on_second = asyncio.Event(), list[Callable[[], None]]()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            for call in on_second:
                call()
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop, on_second
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _invitation(running: Running, settings: HeadraceSettings) -> str:
    where = f"logs in {settings.up.data_dir}/logs; `headrace status` in another terminal; Ctrl-C stops"
    if EXAMPLE_MODEL not in running.models:
        return f"\nserving {', '.join(running.models) or 'no model yet'} on {running.http_url}; {where}"
    return "\n".join(["", "Try it:", *(f"  {c}" for c in commands(running)), "", where])


async def unless(stop: asyncio.Event, step: Coroutine[Any, Any, T]) -> T | None:
    """What `step` gives, or None once `stop` is set."""
    task, stopping = asyncio.create_task(step), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
