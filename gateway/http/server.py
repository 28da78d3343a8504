"""The HTTP door as a whole: listens, sweeps, drains, closes; `/metrics` on a port of its own. Routes nothing itself.

It runs in its caller's event loop and leaves signals alone. Draining in order: unready and `Connection: close` on every
answer while still listening, so that balancers and pools move away without an error; then no new connections; then idle
ones are closed and what was accepted is finished. The core must go on taking requests until `drain` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.core import Core
from gateway.http.doorway import Doorway, Identify
from gateway.http.metrics import CONTENT_TYPE, MetricsPage, MetricsSource
from gateway.http.protocol import HttpProtocol
from gateway.http.routes import build_app
from gateway.http.turns import TurnProtocol
from gateway.idempotency.keys import Keys
from gateway.settings import GatewaySettings
from gateway.usage.book import UsageBook

BACKLOG: Final = 2048
SWEEP_S: Final = 1.0
GRACE_S: Final = 1.0
"""How long a draining door still listens: a few probes of a balancer, one request on each busy connection."""

_log = structlog.get_logger("gateway.http")


class HttpDoor:
    """HTTP in front of a core."""

    def __init__(
        self,
        core: Core,
        identify: Identify,
        settings: GatewaySettings,
        metrics_source: MetricsSource,
        keys: Keys | None = None,
        book: UsageBook | None = None,
    ) -> None:
        self.doorway = Doorway(core, identify, settings)
        self.port = 0
        """Set by `start`."""
        self.metrics_port = 0
        self._settings = settings
        self._keys = keys
        self._book = book
        self._page = MetricsPage(self.doorway.counters, metrics_source)
        self._state = ServerState()
        self._metrics_state = ServerState()
        self._server: asyncio.Server | None = None
        self._metrics_server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Bind both ports. Raises OSError where one is taken; nothing is left open then."""
        loop = asyncio.get_running_loop()
        host = self._settings.host
        config = uvicorn_config(build_app(self.doorway, self._settings, self._keys, self._book))
        metrics_config = uvicorn_config(Starlette(routes=[Route("/metrics", self._metrics)]))
        self._server = await loop.create_server(
            lambda: HttpProtocol(config, self._state, self.doorway), host, self._settings.http_port, backlog=BACKLOG
        )
        try:
            self._metrics_server = await loop.create_server(
                lambda: HttpToolsProtocol(metrics_config, self._metrics_state, {}), host, self._settings.metrics_port
            )
        except OSError:
            self._server.close()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        self.metrics_port = self._metrics_server.sockets[0].getsockname()[1]
        self._sweeper = loop.call_later(SWEEP_S, self._sweep)
        _log.info("http-door-open", host=host, port=self.port, metrics_port=self.metrics_port)

    async def drain(self, timeout_s: float) -> int:
        """Finish what was accepted; returns how many connections were still busy at the end."""
        self.doorway.is_draining = True
        await self._emptied(min(GRACE_S, timeout_s / 4))
        if self._server is not None:
            self._server.close()
        for connection in self._connections():
            connection.shutdown()
        await self._emptied(timeout_s - min(GRACE_S, timeout_s / 4))
        return self.doorway.counters.num_connections

    async def close(self) -> None:
        """Close the ports and every connection at once."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in (self._server, self._metrics_server):
            if server is not None:
                server.close()
        for connection in [*self._state.connections, *self._metrics_state.connections]:
            connection.transport.abort()
        await self._emptied(1.0)
        for task in [*self._state.tasks, *self._metrics_state.tasks]:
            task.cancel()

    async def _emptied(self, timeout_s: float) -> None:
        if self.doorway.counters.num_connections:
            self.doorway.emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.doorway.emptied.wait(), timeout_s)

    def _connections(self) -> list[TurnProtocol]:
        return [c for c in self._state.connections if isinstance(c, TurnProtocol)]

    def _sweep(self) -> None:
        self.doorway.tick += 1
        for connection in self._connections():
            connection.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    async def _metrics(self, _request: Request) -> Response:
        await self.doorway.core.refresh()
        return Response(self._page.text(), media_type=CONTENT_TYPE)


def uvicorn_config(app: Any) -> Config:
    """What uvicorn's protocols read; nothing of it opens a port or takes a signal."""
    config = Config(
        app,
        http=HttpToolsProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    config.load()
    return config
