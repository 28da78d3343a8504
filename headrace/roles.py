"""`headrace gateway` and `headrace worker`: one role in this process, for containers and units of their own."""

from __future__ import annotations

import asyncio
import signal

import uvloop

from gateway.settings import GatewaySettings
from workers.settings import WorkerSettings


def run_workers(settings: WorkerSettings) -> None:
    """A pool of workers until SIGTERM or SIGINT."""
    from transport.logs import configure_logs
    from workers.pool import run_pool

    configure_logs(settings.log_level, process="pool", group=settings.group)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run_pool(settings, stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def run_gateway(settings: GatewaySettings) -> int:
    """A gateway until SIGTERM or SIGINT; the exit code."""
    from gateway.app import run

    return run(settings)
