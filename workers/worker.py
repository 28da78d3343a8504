"""One worker process: settings in, signals and the parent's end heard, a worker on a connection, an exit code out.

python -m workers.worker    settings as one JSON line on stdin; the end of stdin means that the parent died
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Final

import structlog
import uvloop

from transport.base import Transport, TransportError
from transport.connection import connect
from transport.logs import configure_logs
from workers.backoff import Backoff
from workers.life import BROKER_BACKOFF_S, MAX_BROKER_BACKOFF_S, Worker
from workers.loopwatch import watch_loop
from workers.parent import read_settings, watch_parent
from workers.repository.saved import SLOT_FOLDER
from workers.settings import WorkerSettings

LOOP_GRACE_S: Final = 10.0
"""How much longer than the models' longest execution the event loop may hang before the process is ended."""

log = structlog.get_logger()


async def connect_for_ever(settings: WorkerSettings, name: str, stop: asyncio.Event) -> Transport | None:
    """A transport, whenever the broker comes up; None if `stop` came first."""
    backoff = Backoff(BROKER_BACKOFF_S, MAX_BROKER_BACKOFF_S)
    while not stop.is_set():
        try:
            return await connect(settings.broker, name)
        except TransportError as e:
            pause_s = backoff.pause_s()
            log.warning("broker-not-there", error=str(e), again_in_s=pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                continue
    return None


async def _main(settings: WorkerSettings, name: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watch_parent(stop.set)
    transport = await connect_for_ever(settings, f"worker-{name}", stop)
    if transport is None:
        return 0
    slot = os.environ.get(SLOT_FOLDER)
    worker = Worker(settings, transport, name=name, stop=stop, slot=Path(slot) if slot else None)

    def max_silent_s() -> float:
        configs = [m.entry.config for m in worker.models.values() if m.entry.config is not None]
        return max([c.max_execution_s for c in configs], default=60.0) + LOOP_GRACE_S

    unwatch = watch_loop(max_silent_s)
    try:
        code = await worker.run()
    finally:
        unwatch()
        await transport.close()
    return code


def main() -> None:
    """Serve until SIGTERM, SIGINT or the end of stdin."""
    settings = read_settings()
    name = secrets.token_hex(6)
    configure_logs(settings.log_level, process="worker", worker=name, group=settings.group)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_main(settings, name))
    sys.stderr.flush()
    # Not through the interpreter's shutdown: a thread that does not return would keep the process, and one that still
    # frees an ONNX session there is unwound through C++ and aborts it.
    os._exit(code)


if __name__ == "__main__":
    main()
