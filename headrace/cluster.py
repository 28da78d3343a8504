"""Who is there, from heartbeats: gateways, workers, their models. Listens and asks; changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from contract.envelope import BadEnvelope, unpack
from contract.messages import GatewayBeat, WorkerBeat
from contract.subjects import ASK_BEATS, GATEWAY_BEATS, WORKER_BEATS
from transport.base import Transport

ANSWER_WAIT_S = 0.3
"""Everybody answers `hb.ask` at once; this is patience for a busy machine, not a protocol time."""


@dataclass(slots=True)
class Cluster:
    """The last heartbeat of each process heard."""

    workers: dict[str, WorkerBeat] = field(default_factory=dict)
    gateways: dict[str, GatewayBeat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readiness:
    """How far the workers are."""

    num_serving: int
    ready: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    """(model, reason), no worker serves any version of it."""
    loading: tuple[str, ...]


def readiness(cluster: Cluster) -> Readiness:
    """What the workers' cards say together: a model is ready once a worker has a ready version of it."""
    ready: set[str] = set()
    loading: set[str] = set()
    reasons: dict[str, str] = {}
    for beat in cluster.workers.values():
        for card in beat.models:
            name = card.config.name
            if card.ready_versions:
                ready.add(name)
            elif any(v.state == "LOADING" for v in card.versions):
                loading.add(name)
            else:
                reasons[name] = next((v.reason for v in card.versions if v.reason), "no version could be loaded")
    failed = tuple(sorted((n, r) for n, r in reasons.items() if n not in ready | loading))
    num_serving = sum(b.state == "serving" for b in cluster.workers.values())
    return Readiness(num_serving, tuple(sorted(ready)), failed, tuple(sorted(loading - ready)))


async def follow(transport: Transport, cluster: Cluster, on_change: Callable[[], None]) -> None:
    """Keep `cluster` up to date from now on, and ask everybody to speak."""

    def on_worker(_subject: str, _reply: str, payload: bytes) -> None:
        try:
            beat, _ = unpack(WorkerBeat, payload)
        except BadEnvelope:
            return  # another format version: not ours to show
        cluster.workers[beat.worker] = beat
        on_change()

    def on_gateway(_subject: str, _reply: str, payload: bytes) -> None:
        try:
            beat, _ = unpack(GatewayBeat, payload)
        except BadEnvelope:
            return
        cluster.gateways[beat.gateway] = beat
        on_change()

    await transport.subscribe(WORKER_BEATS, on_worker)
    await transport.subscribe(GATEWAY_BEATS, on_gateway)
    transport.publish(ASK_BEATS, b"")


async def look(transport: Transport, wait_s: float = ANSWER_WAIT_S) -> Cluster:
    """Who answers now."""
    cluster = Cluster()
    await follow(transport, cluster, lambda: None)
    await asyncio.sleep(wait_s)
    return cluster
