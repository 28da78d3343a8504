"""Connects to nats-server and makes a Transport of the connection. Keeps trying for ever once it was connected."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from nats.errors import Error as NatsError

from transport.base import TransportError
from transport.client import FastClient
from transport.nats_transport import NatsTransport
from transport.settings import BrokerSettings

RECONNECT_WAIT_S: Final = 0.1
"""Between two tries of one server; nats-py's 2 s would be most of a default outage."""
PING_EACH_S: Final = 2
MAX_PINGS_OUT: Final = 2
"""A broker that hangs without closing is noticed after some six seconds."""


async def connect(settings: BrokerSettings, name: str, *, now_s: Callable[[], float] = time.monotonic) -> NatsTransport:
    """A transport on the first server that answers.

    Raises:
        TransportError: none did within `connect_timeout_s`; names the servers and the last reason.
    """
    client = FastClient(name, must_be_tls=_wants_tls(settings))
    reasons: list[Exception] = []

    async def note(reason: Exception) -> None:
        reasons[:] = [reason]

    options = _options(settings)
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await client.connect(name=name, error_cb=note, reconnected_cb=client.back, **options)
        client.connected()
        transport = NatsTransport(client, now_s=now_s)
        await transport.start()
    except (TimeoutError, NatsError) as e:
        await client.close()
        why = reasons[-1] if reasons else e
        servers = ", ".join(settings.servers)
        raise TransportError(f"no broker at {servers} within {settings.connect_timeout_s:g} s: {why}") from None
    except BaseException:
        await client.close()
        raise
    return transport


def _options(settings: BrokerSettings) -> dict[str, Any]:
    try:
        tls = _tls_context(settings)
        password = _first_line(settings.password_file)
    except (OSError, ValueError) as e:
        files = (settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file, settings.password_file)
        raise TransportError(f"unreadable one of {', '.join(str(f) for f in files if f)}: {e}") from None
    return {
        "servers": list(settings.servers),
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "connect_timeout": settings.connect_timeout_s,
        "ping_interval": PING_EACH_S,
        "max_outstanding_pings": MAX_PINGS_OUT,
        "tls": tls,
        "user": settings.user or None,
        "password": password,
    }


def _wants_tls(settings: BrokerSettings) -> bool:
    return settings.tls_ca_file is not None or any(s.startswith("tls://") for s in settings.servers)


def _tls_context(settings: BrokerSettings) -> ssl.SSLContext | None:
    if not _wants_tls(settings):
        return None
    context = ssl.create_default_context(cafile=settings.tls_ca_file)
    if settings.tls_cert_file is not None:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    return context


def _first_line(path: Path | None) -> str | None:
    return path.read_text().partition("\n")[0].strip() if path is not None else None
