"""Where limits and their counts live. Settings only; the limits themselves are in a file of their own, rules.py."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FailMode = Literal["local", "open", "closed"]


class LimitsSettings(BaseModel):
    """Limits of one gateway process. All gateways of a cluster are told the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = Field(default=None, description="The limits, as in configs/limits.yaml; without it none.")
    store: str = Field(
        default="",
        description="Where gateways count together: `redis://host:port/db`, `rediss://` for TLS, `unix://path`, or "
        "`redis+sentinel://host:port,host:port/name/db`. Empty counts in this process, for a single gateway.",
    )
    user: str = Field(default="", description="ACL user of the store; empty for its default user.")
    password_file: Path | None = Field(default=None, description="File whose first line is the store's password.")
    sentinel_password_file: Path | None = Field(
        default=None, description="File whose first line is the password of the sentinels."
    )
    tls_ca_file: Path | None = Field(default=None, description="CA certificate (PEM) of the store, for `rediss://`.")
    tls_cert_file: Path | None = Field(default=None, description="Client certificate (PEM) for the store.")
    tls_key_file: Path | None = Field(default=None, description="Client key (PEM) for the store.")
    key_prefix: str = Field(
        default="headrace", pattern=r"^[A-Za-z0-9_.:-]{1,64}$", description="First part of every key in the store."
    )
    timeout_ms: int = Field(
        default=250, ge=1, le=10_000, description="How long a decision may wait for the store, milliseconds."
    )
    fail: FailMode = Field(
        default="local",
        description="What holds while the store is away: `local` counts in each gateway, `open` lets everybody in, "
        "`closed` answers 503.",
    )
    lease_s: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="How long what a gateway holds stays taken after the gateway died, seconds.",
    )
