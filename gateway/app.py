"""One gateway process: builds everything, starts it in order, drains it in order. Decides nothing about requests.

    start: keys → broker → core (streams, heartbeats) → NATS door → HTTP door
    stop:  unready → doors drain (still serving) → core refuses, finishes → doors close → core → broker

`python -m gateway.app` reads its settings as one JSON line from stdin and ends when stdin closes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Final

import structlog
import uvloop
from pydantic import ValidationError

from gateway.core import Core
from gateway.dispatch import Dispatch
from gateway.http.metrics import GatewayNumbers
from gateway.http.server import HttpDoor
from gateway.idempotency.keys import Keys
from gateway.identity import IdentityError, check_binding, load_identity, watch_identity
from gateway.limits.gate import LEASE_US, Gate
from gateway.limits.local import LocalStore
from gateway.limits.match import Rulebook
from gateway.limits.rules import LimitsError, Rules, load_rules
from gateway.nats_door import NatsDoor
from gateway.settings import GatewaySettings
from gateway.usage.book import UsageBook
from gateway.watched import WatchedFiles
from transport.base import TransportError
from transport.connection import connect
from transport.headers import HeadedTransport
from transport.logs import configure_logs
from transport.nats_transport import NatsTransport

BROKER_PATIENCE_S: Final = 60.0
"""How long a starting gateway waits for a broker that is not there yet."""
RETRY_S: Final = 0.5
LAST_MOMENTS_S: Final = 1.0
"""For answers that the drained core gave at the last moment to leave the doors."""
KEPT_ROOM_BYTES: Final = 16 * 1024
"""Room for the headers of an answer that is kept in one message."""
GC_THRESHOLDS: Final = (20_000, 20, 20)
"""A busy gateway has thousands of young objects in flight; at Python's 700 each collection would walk them in vain."""

OnReady = Callable[[int, int], None]
"""(HTTP port, metrics port)"""

log = structlog.get_logger("gateway.app")


class Stop:
    """Why and when to stop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_orphaned = False
        """Whoever started us is gone: there is nobody left to drain for."""

    def ask(self) -> None:
        """Stop in order."""
        self._event.set()

    def orphan(self) -> None:
        """Stop at once."""
        self.is_orphaned = True
        self._event.set()

    async def asked(self, within_s: float | None = None) -> bool:
        """Wait for it; False if it did not come in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


async def serve(settings: GatewaySettings, *, on_ready: OnReady | None = None, stop: Stop | None = None) -> None:
    """Run until `stop` is asked; without one, until SIGTERM or SIGINT.

    Raises:
        IdentityError: see identity.py.  TransportError: no broker in time.  OSError: a port is taken.
    """
    identity = load_identity(settings.tenants_file)
    check_binding(settings.host, identity)
    rules = None if settings.limits_file is None else load_rules(settings.limits_file)
    stop = stop or _on_signals(Stop())
    watched = WatchedFiles([] if settings.tenants_file is None else [watch_identity(settings.tenants_file, identity)])
    transport = await _connect(settings, stop)
    if transport is None:
        return
    core = Dispatch(settings, transport, version=metadata.version("headrace"))
    keys = Keys(transport, min(settings.max_idempotent_bytes, transport.max_payload - KEPT_ROOM_BYTES))
    limited = core if rules is None else _limited(core, rules)
    book = UsageBook(transport, core.inflight.take_usage)
    http = HttpDoor(limited, identity.identify, settings, lambda: numbers(core, transport), keys, book)
    nats = NatsDoor(limited, identity, transport, settings)
    try:
        await core.start()
        await nats.start()
        await http.start()
        book.start()
        watched.start()
        _on_hangup(watched.reload)
        core.presence.say(address=f"{settings.host}:{http.port}")
        gc.collect()
        gc.freeze()
        if on_ready is not None:
            on_ready(http.port, http.metrics_port)
        await stop.asked()
        timeout_s = 0.0 if stop.is_orphaned else settings.drain_timeout_s
        log.info("draining", num_open=len(core.inflight), timeout_s=timeout_s)
        await _drain(core, http, nats, timeout_s)
    finally:
        await watched.close()
        await nats.close()
        await core.close()
        await http.close()
        await book.close()
        await transport.close()
        log.info("stopped")


def _limited(core: Dispatch, rules: Rules) -> Core:
    return Gate(core, Rulebook(rules, node=core.gateway, prefix="headrace"), LocalStore(LEASE_US))


def numbers(core: Dispatch, transport: HeadedTransport) -> GatewayNumbers:
    """What `/metrics` shows of the core."""
    inflight, outbox = core.inflight, core.outbox
    open_by_model = dict.fromkeys(core.registry.cards(), 0)
    for entry in inflight.entries():
        key = (entry.lane.address.group, entry.lane.address.model)
        open_by_model[key] = open_by_model.get(key, 0) + 1
    return GatewayNumbers(
        beats=core.registry.workers(),
        counters={
            "messages": outbox.num_messages,
            "published_requests": outbox.num_published,
            "duplicate_answers": inflight.num_late_answers,
            "unreadable_replies": core.receiver.num_unreadable,
            "cancelled_requests": core.cancels.num_cancelled,
            "resent_requests": core.recovery.num_resent,
            "expired_requests": inflight.num_failed.get("deadline-exceeded", 0),
            "reconnects": transport.num_reconnects,
        },
        gauges={
            "held_bytes": core.admission.held_bytes,
            "open_requests": len(inflight),
            "ready": float(core.is_ready),
        },
        open_by_model=open_by_model,
    )


async def _drain(core: Dispatch, http: HttpDoor, nats: NatsDoor, timeout_s: float) -> None:
    """Doors first, while the core still serves; then what is left in the core."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    core.begin_drain()
    await asyncio.gather(http.drain(timeout_s), nats.drain(timeout_s))
    await core.drain(max(0.0, until_s - loop.time()))
    # Ends what did not finish in time with 503, so that the doors can still say so.
    await core.close()
    if timeout_s:
        await http.drain(LAST_MOMENTS_S)


async def _connect(settings: GatewaySettings, stop: Stop) -> NatsTransport | None:
    """The broker's connection, or None if we were stopped before it was there."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BROKER_PATIENCE_S
    while True:  # ends by patience
        try:
            return await connect(settings.broker, settings.name or f"gateway-{os.getpid()}")
        except TransportError as e:
            if loop.time() > until_s:
                raise
            log.warning("broker-not-there", error=str(e))
        if await stop.asked(RETRY_S):
            return None


def _on_signals(stop: Stop) -> Stop:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    return stop


def _on_hangup(reload: Callable[[], None]) -> None:
    """SIGHUP reads the watched files; where a terminal can hang up, it goes on meaning that."""
    if threading.current_thread() is threading.main_thread() and not os.isatty(2):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


def run(settings: GatewaySettings, *, is_child: bool = False) -> int:
    """A gateway in this process, until a signal (or, as a child, until stdin closes); returns the exit code."""
    configure_logs(settings.log_level, process="gateway")
    gc.set_threshold(*GC_THRESHOLDS)

    async def life() -> None:
        stop = _on_signals(Stop())
        if is_child:
            _watch_stdin(stop)
        await serve(settings, stop=stop)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(life())
    except (IdentityError, LimitsError, TransportError, OSError) as e:
        log.error("cannot-start", error=str(e))
        return 1
    return 0


def _watch_stdin(stop: Stop) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.orphan()

    loop.add_reader(sys.stdin.fileno(), readable)


def main() -> int:
    """Entry of `python -m gateway.app`."""
    try:
        settings = GatewaySettings.model_validate_json(sys.stdin.buffer.readline())
    except ValidationError as e:
        sys.stderr.write(f"settings on stdin: {e}\n")
        return 2
    return run(settings, is_child=True)


if __name__ == "__main__":
    sys.exit(main())
