"""What a worker pool can be told. Settings only; docs/configuration.md is generated from these descriptions."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from transport.settings import BrokerSettings


class WorkerSettings(BaseModel):
    """One pool: `num_processes` workers that each serve every model of the repository."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group: str = Field(default="default", description="Group whose queue this pool serves.")
    model_repository: Path = Field(default=Path("model_repository"), description="Folder in Triton's layout.")
    models: list[str] = Field(
        default=[],
        description="Models to load; empty loads all of the repository, in mode `explicit` none. `*` stands for all.",
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        default="none",
        description="`none`: load at the start. `poll`: follow changes of the folder. `explicit`: load `models` at the "
        "start, the rest on request.",
    )
    repository_poll_s: float = Field(
        default=5.0, ge=0.05, le=3600, description="How often the folder is looked at, seconds; not in mode `none`."
    )
    allow_model_upload: bool = Field(
        default=False,
        description="Whether a load request may bring its own config and files. They are code: who may load may run "
        "anything.",
    )
    num_processes: int = Field(default=1, ge=1, le=64, description="Worker processes.")
    intra_op_threads: int = Field(
        default=0,
        ge=0,
        le=256,
        description="CPU threads of one model instance; 0 shares the cores among the instances.",
    )
    inline_below_us: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="A model whose run is shorter runs in the event loop, microseconds; 0: none.",
    )
    drain_timeout_s: float = Field(
        default=10.0, ge=0, le=600, description="How long a stopping worker finishes what it runs, seconds."
    )
    restart_backoff_s: float = Field(
        default=0.5, gt=0, le=60, description="Pause before a died worker is started again, seconds; doubles up to 30."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level logged.")
    broker: BrokerSettings = Field(default=BrokerSettings(), description="The message broker.")
