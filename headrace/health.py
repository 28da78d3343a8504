"""`headrace health`: whether the gateway or the workers of this host serve, as a line and an exit code. Asks only.

For the health checks of containers and units: it looks at its own host only. A worker has no port, so its heartbeats
are listened to on the broker.
"""

from __future__ import annotations

import socket

from headrace.cluster import Cluster, look, readiness
from headrace.config.settings import HeadraceSettings
from headrace.probe import get_status
from headrace.status import CONNECT_S
from transport.base import TransportError
from transport.connection import connect

READY_PATH = "/v2/health/ready"
GET_TIMEOUT_S = 2.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to
"""Addresses to bind to, and where a caller on the same host finds them."""


async def gateway_health(settings: HeadraceSettings) -> tuple[bool, str]:
    """Whether the gateway of this host takes requests, and a line that says it."""
    host, port = settings.gateway.host, settings.gateway.http_port
    host = ANY_ADDRESS.get(host, host)
    status = await get_status(host, port, READY_PATH, GET_TIMEOUT_S)
    answer = f"answers {status}" if status else "does not answer"
    return status == 200, f"gateway: {READY_PATH} on {host}:{port} {answer}"


async def worker_health(settings: HeadraceSettings) -> tuple[bool, str]:
    """Whether a worker of this host and group serves and none of its models is loading, and a line that says it."""
    broker, group = settings.worker.broker, settings.worker.group
    patience_s = min(CONNECT_S, broker.connect_timeout_s)
    try:
        transport = await connect(broker.model_copy(update={"connect_timeout_s": patience_s}), name="headrace-health")
    except (TransportError, OSError) as e:
        return False, f"worker: the broker can't be reached: {e or type(e).__name__}"
    try:
        cluster = await look(transport)
    finally:
        await transport.close()
    return judge_workers(cluster, socket.gethostname(), group)


def judge_workers(cluster: Cluster, host: str, group: str) -> tuple[bool, str]:
    """What the heartbeats of one host's workers say; models that failed to load don't hurt those that serve."""
    own = {name: beat for name, beat in cluster.workers.items() if (beat.host, beat.group) == (host, group)}
    found = readiness(Cluster(workers=own))
    text = (
        f"worker: {found.num_serving} of {len(own)} processes of {host} serve; models: "
        f"{len(found.ready)} ready, {len(found.loading)} loading, {len(found.failed)} failed"
    )
    return found.num_serving > 0 and not found.loading, text
