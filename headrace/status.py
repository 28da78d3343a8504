"""`headrace status` and `headrace models`: what heartbeats and the broker's queues say now, as tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

from contract.model_config import ModelCard
from contract.streams import lane_consumer
from contract.subjects import ANY_VERSION, LANES, LaneAddress
from headrace.cluster import Cluster, look
from headrace.config.settings import HeadraceSettings
from headrace.runfile import read_note
from headrace.tables import print_table
from transport.base import StreamGone, Transport, TransportError
from transport.connection import connect
from transport.settings import BrokerSettings

CONNECT_S = 2.0
"""A broker that does not answer within this is not there, for somebody who waits at a prompt."""

Row = tuple[str, ...]

GATEWAYS: Row = ("gateway", "state", "address", "host", "pid", "in flight", "up")
WORKERS: Row = ("worker", "group", "state", "host", "pid", "memory", "models", "up")
QUEUES: Row = ("group", "model", "version", "lane", "waiting", "in workers' hands")
INSTANCES: Row = ("worker", "model", "version", "pending", "in hand", "credits", "busy/instances", "answered", "failed")
MODELS: Row = ("group", "model", "version", "state", "backend", "max batch", "inputs", "outputs", "reason")


def broker_of(settings: HeadraceSettings) -> BrokerSettings:
    """The broker of the launcher that runs here, else the configured one."""
    note = read_note(settings.up.data_dir)
    broker = settings.gateway.broker
    at = {"servers": [note.broker_url]} if note else {}
    return broker.model_copy(update={"connect_timeout_s": min(CONNECT_S, broker.connect_timeout_s), **at})


async def print_status(settings: HeadraceSettings) -> int:
    """Print the four tables; the exit code."""
    broker = broker_of(settings)
    try:
        transport = await connect(broker, name="headrace-status")
        try:
            cluster = await look(transport)
            queues = await queue_rows(transport, cluster)
        finally:
            await transport.close()
    except (TransportError, OSError) as e:
        return _no_broker(e)
    now_s = time.time()
    print_table("", GATEWAYS, gateway_rows(cluster, now_s))
    for columns, rows in (
        (WORKERS, worker_rows(cluster, now_s)),
        (QUEUES, queues),
        (INSTANCES, instance_rows(cluster)),
    ):
        sys.stdout.write("\n")
        print_table("", columns, rows)
    return 0


async def print_models(settings: HeadraceSettings) -> int:
    """Print the models that workers offer; the exit code."""
    broker = broker_of(settings)
    try:
        transport = await connect(broker, name="headrace-models")
        try:
            cluster = await look(transport)
        finally:
            await transport.close()
    except (TransportError, OSError) as e:
        return _no_broker(e)
    print_table("", MODELS, model_rows(cluster))
    return 0


def gateway_rows(cluster: Cluster, now_s: float) -> list[Row]:
    """One per gateway."""
    return [
        (b.gateway, b.state, b.address, b.host, str(b.pid), str(b.num_in_flight), _age(b.started_unix_ms, now_s))
        for b in sorted(cluster.gateways.values(), key=lambda b: b.gateway)
    ]


def worker_rows(cluster: Cluster, now_s: float) -> list[Row]:
    """One per worker process."""
    rows: list[Row] = []
    for b in sorted(cluster.workers.values(), key=lambda b: (b.group, b.worker)):
        ready = sum(1 for card in b.models if card.ready_versions)
        memory = f"{b.rss_bytes / 2**20:.0f} MiB"
        models = f"{ready} of {len(b.models)} ready"
        rows.append((b.worker, b.group, b.state, b.host, str(b.pid), memory, models, _age(b.started_unix_ms, now_s)))
    return rows


def instance_rows(cluster: Cluster) -> list[Row]:
    """One per worker, model and version: what lies there and what its instances do."""
    return [
        (
            beat.worker,
            s.model,
            s.version,
            str(s.num_pending),
            str(s.num_in_hand),
            str(s.num_credits),
            f"{s.num_busy_instances}/{s.num_instances}",
            str(s.num_success),
            str(s.num_failed),
        )
        for beat in sorted(cluster.workers.values(), key=lambda b: b.worker)
        for s in sorted(beat.stats, key=lambda s: (s.model, s.version))
    ]


async def queue_rows(transport: Transport, cluster: Cluster) -> list[Row]:
    """One per lane that a worker serves: messages in the broker."""
    lanes = {
        LaneAddress(beat.group, card.config.name, version, lane)
        for beat in cluster.workers.values()
        for card in beat.models
        for version in (ANY_VERSION, *card.ready_versions)
        for lane in LANES
    }
    rows: list[Row] = []
    for address in sorted(lanes):
        try:
            waiting, in_hand = await transport.lane_backlog(lane_consumer(address))
        except StreamGone:
            continue
        rows.append((address.group, address.model, address.version, address.lane, str(waiting), str(in_hand)))
    return rows


def model_rows(cluster: Cluster) -> list[Row]:
    """One per group, model and version; workers that say the same are one row."""
    rows = {row for beat in cluster.workers.values() for card in beat.models for row in _card_rows(beat.group, card)}
    return sorted(rows)


def _card_rows(group: str, card: ModelCard) -> Iterable[Row]:
    config = card.config
    inputs = ", ".join(f"{t.name} {t.datatype}{list(t.dims)}" for t in config.inputs)
    outputs = ", ".join(f"{t.name} {t.datatype}{list(t.dims)}" for t in config.outputs)
    engine = config.backend or config.platform
    for v in card.versions:
        yield (group, config.name, v.version, v.state, engine, str(config.max_batch_size), inputs, outputs, v.reason)


def _age(started_unix_ms: int, now_s: float) -> str:
    seconds = max(0, int(now_s - started_unix_ms / 1000))
    parts = ((seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s"))
    told: Sequence[str] = [f"{n} {unit}" for n, unit in parts if n]
    return " ".join(told[:2]) or "0 s"


def _no_broker(error: Exception) -> int:
    sys.stderr.write(f"{error or type(error).__name__}; is `headrace up` running?\n")
    return 1
