"""One broker, gateway and worker for a file of cases: none of them kills anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from tests.support.cluster import Cluster, Gateway, cluster
from tests.support.cluster_fixtures import closes_connections, place

__all__ = ["closes_connections", "place", "server"]

MODELS = (
    "ident_f32",
    "ident_i32",
    "ident_bytes",
    "ident_bytes_rows",
    "ident_f16",
    "ident_bf16",
    "poison",
    "slow_500",
    "queue3",
    "grow",
    "labelled",
    "add_sub",
    "embed8",
)


@dataclass
class Server:
    """What the cases of a file share."""

    place: Cluster
    gateway: Gateway
    worker: psutil.Process

    @property
    def port(self) -> int:
        return self.gateway.http_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """After the last case the same processes still run, and none has raised."""
    with cluster(tmp_path_factory.mktemp("cases")) as place:
        gateway, (pool,) = place.serve(*MODELS)
        worker = pool.worker()
        yield Server(place, gateway, worker)
        assert pool.worker().pid == worker.pid
        assert gateway.metric("headrace_reconnects_total") == 0
        assert gateway.metric("headrace_open_requests") == 0
        assert gateway.metric("headrace_held_bytes") == 0
