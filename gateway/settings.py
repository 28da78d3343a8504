"""What a gateway can be told. Settings only; docs/configuration.md is generated from these descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from transport.settings import BrokerSettings


class ServiceSettings(BaseModel):
    """A service: which groups its models live in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: list[str] = Field(
        default=["default"],
        min_length=1,
        description="Groups to look a model up in, the first that serves it is taken.",
    )
    models: dict[str, str] = Field(
        default={}, description="Model name to group, where the order of `groups` is not enough."
    )


class GatewaySettings(BaseModel):
    """One gateway process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="", description="Name of this process in status and logs; empty makes one.")
    host: str = Field(default="127.0.0.1", description="Address the doors bind to. Off loopback needs `tenants_file`.")
    http_port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP door; 0 takes a free one.")
    metrics_port: int = Field(default=8002, ge=0, le=65535, description="Port of `/metrics`; 0 takes a free one.")
    tenants_file: Path | None = Field(
        default=None,
        description="Keys and tenants, read again when it changes; without it every caller is `default`.",
    )
    limits_file: Path | None = Field(
        default=None,
        description="Limits, as in configs/limits.yaml; each gateway counts for itself. Without it there are none.",
    )
    default_service: str = Field(default="default", description="Service of a request that names none.")
    services: dict[str, ServiceSettings] = Field(
        default={"default": ServiceSettings()}, min_length=1, description="Services by name."
    )
    default_timeout_ms: int = Field(
        default=30_000, ge=1, le=600_000, description="Deadline of a request that names none, milliseconds."
    )
    max_timeout_ms: int = Field(
        default=600_000, ge=1, le=600_000, description="Longest deadline granted, milliseconds."
    )
    model_load_timeout_s: float = Field(
        default=300.0,
        gt=0,
        le=3600,
        description="How long a load or unload on request may take on one worker before its caller gets 504, seconds.",
    )
    max_in_flight: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Accepted and unanswered requests; more are refused with 503."
    )
    max_request_bytes: int = Field(
        default=128 * 1024 * 1024, ge=1024, description="Largest HTTP body, bytes; more is refused with 413."
    )
    max_json_bytes: int = Field(
        default=8 * 1024 * 1024,
        ge=1024,
        description="Largest JSON part of a request, bytes; more is 413. It is decoded at one go while all others wait "
        "(about 0.3 s at the default, a second at worst). Large tensors belong in binary form.",
    )
    max_held_bytes: int = Field(
        default=1024 * 1024 * 1024, ge=1024 * 1024, description="Bytes of accepted requests held at once; more is 503."
    )
    max_async_requests: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Requests with `Prefer: respond-async` that run or have an answer kept; old answers make room.",
    )
    max_async_bytes: int = Field(
        default=256 * 1024 * 1024,
        ge=1024,
        description="Bytes of answers kept for `GET /v1/requests/{id}`; over it the oldest of who holds most go.",
    )
    async_keep_s: float = Field(
        default=600.0, ge=1, le=86_400, description="How long such an answer is kept after it came, seconds."
    )
    max_idempotent_bytes: int = Field(
        default=256 * 1024,
        ge=1024,
        description="Largest answer kept for retries with the same `Idempotency-Key`, bytes; at most what a broker "
        "message takes. A retry of a larger one is 413 and runs nothing.",
    )
    drain_timeout_s: float = Field(
        default=30.0, ge=0, le=600, description="How long a stopping gateway finishes what it accepted, seconds."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level logged.")
    broker: BrokerSettings = Field(default=BrokerSettings(), description="The message broker.")
