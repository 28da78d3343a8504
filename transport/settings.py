"""How to reach the broker. Settings only."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class BrokerSettings(BaseModel):
    """The message broker, as seen by a gateway or a worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: list[str] = Field(
        default=["nats://127.0.0.1:4222"], min_length=1, description="Addresses of the NATS servers, tried in turn."
    )
    user: str = Field(default="", description="User name; empty for a broker without users.")
    password_file: Path | None = Field(default=None, description="File whose first line is the password.")
    tls_ca_file: Path | None = Field(default=None, description="CA certificate (PEM); set, the connection must be TLS.")
    tls_cert_file: Path | None = Field(default=None, description="Client certificate (PEM).")
    tls_key_file: Path | None = Field(default=None, description="Client key (PEM).")
    connect_timeout_s: float = Field(default=5.0, gt=0, le=60, description="How long one connect may take, seconds.")
    online_max_msgs: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Messages a group's online queue holds before `queue-full`."
    )
    online_max_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024 * 1024,
        description="Bytes of broker memory reserved for a group's online queue.",
    )
    blob_max_bytes: int = Field(
        default=512 * 1024 * 1024,
        ge=1024 * 1024,
        description="Bytes of broker memory reserved for payloads over 1 MiB.",
    )
