"""Everything a configuration file may say, as one tree of types. Settings only; reads nothing."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from gateway.settings import GatewaySettings
from transport.settings import BrokerSettings
from workers.settings import WorkerSettings


class UpSettings(BaseModel):
    """The one-machine launcher: a broker, a gateway and a worker pool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_dir: Path = Field(
        default=Path(".headrace"), description="Folder of the broker's files and of the note that tells where we run."
    )
    broker_port: int = Field(default=4222, ge=0, le=65535, description="Port of nats-server; 0 takes a free one.")
    is_port_fixed: bool = Field(
        default=False, description="Whether a taken port is an error; else a free one is used and said."
    )
    broker_max_memory_bytes: int = Field(
        default=0, ge=0, description="Broker memory for queues, bytes; 0 takes a quarter of the machine's, 768 MiB up."
    )
    broker_max_file_bytes: int = Field(
        default=0, ge=0, description="Broker disk for durable streams, bytes; 0 takes half of what is free."
    )
    ready_timeout_s: float = Field(
        default=120.0, gt=0, le=3600, description="How long models may take to become ready, seconds."
    )


class HeadraceSettings(BaseModel):
    """A whole configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    broker: BrokerSettings = Field(
        default=BrokerSettings(),
        description="The message broker, for both, unless their own `broker` section says otherwise.",
    )
    gateway: GatewaySettings = Field(default=GatewaySettings(), description="The gateway.")
    worker: WorkerSettings = Field(default=WorkerSettings(), description="The worker pool.")
    up: UpSettings = Field(default=UpSettings(), description="The one-machine launcher.")
