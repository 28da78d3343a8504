"""What an engine must offer to be a backend. Protocols and data only.

A backend is a module with `load(source) -> ModelInstance`, found by its name in `workers/backends/registry.py`.
Engine libraries are imported inside `load`, never at import time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contract.errors import HeadraceError
from contract.messages import ParameterValue
from contract.model_config import InstanceGroup, ModelConfig
from contract.tensors import Array


@dataclass(frozen=True, slots=True)
class InstanceSource:
    """What one instance is made from."""

    config: ModelConfig
    version: str
    model_dir: Path
    """Folder of the model; its version folder is `model_dir / version`."""
    group: InstanceGroup
    index: int
    """Number of the instance in the model, from 0."""
    device_id: int | None = None
    """GPU, or None on the CPU."""
    intra_op_threads: int = 1
    triton_config: Mapping[str, object] = field(default_factory=dict)
    """The whole config in Triton's JSON form, as `model.py` gets it."""

    @property
    def version_dir(self) -> Path:
        """Folder that holds this version's files."""
        return self.model_dir / self.version


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """One request as a request-wise backend sees it; arrays are [rows, *dims], or [*dims] without batching."""

    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]
    """Those the caller asked for; empty where it asked for none, then the model may leave some out."""
    request_id: str = ""
    correlation_id: int = 0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    timeout_us: int = 0


RequestResult = dict[str, Array] | HeadraceError


class ModelInstance(Protocol):
    """One loaded instance. Its calls block and are made from one thread at a time."""

    is_request_wise: bool
    """True: `run_requests` is called. False: `run`, on arrays joined along the batch dimension."""
    holds_process: bool
    """True when it runs in a process of its own, which may be killed when an execution does not return."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """One execution.

        Shapes:
            in:  input i is [rows, *dims_i]
            out: output j is [rows, *dims_j]

        Raises:
            HeadraceError: it failed as a whole; the caller splits the micro-batch and tries again.
        """

    def run_requests(self, requests: Sequence[InstanceRequest]) -> Sequence[RequestResult]:
        """One execution over several requests; a result per request, in order. Raises as `run` does.

        InstanceDied: its process ended under it; the instance must be loaded again.
        ExecutionTimeout: it did not return within max_execution_s and was killed.
        """

    def close(self) -> None:
        """Free the device and end its process, within five seconds."""


class LoadFailed(Exception):
    """A model version that can't be loaded; the message is the reason that users read in the repository index."""
