"""What every front door says to the gateway's core and hears from it: a request, its target, its one end.

Data and protocols only; `dispatch.py` is the core. What is made for every request is a Struct: a quarter of the time.

Invariants: `done` is called exactly once for every submitted request, whatever happens to the broker, the workers or
the caller (tests/property/test_exactly_once.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from contract.errors import HeadraceError
from contract.messages import ParameterValue, TensorHead
from contract.model_config import ModelCard, ModelStats
from contract.principal import Principal


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: resolved once, before its body is decoded."""

    service: str
    group: str
    card: ModelCard
    version: str
    """Version digits, or empty for whatever the worker's policy serves."""


class InferRequest(msgspec.Struct, eq=False):
    """One decoded and validated request. Its tensors are raw bytes in wire form, in the order of `heads`."""

    principal: Principal
    request_id: str
    """Ours, unique: answers and logs carry it."""
    caller_id: str
    """OIP `id` of the request, echoed in the answer; may be empty."""
    rows: int
    heads: tuple[TensorHead, ...]
    data: list[bytes | memoryview]
    deadline_s: float
    """On this process's monotonic clock."""
    sizes: tuple[int, ...] = ()
    """Bytes of each tensor where a BYTES tensor is among them, else empty."""
    priority: int = 0
    queue_timeout_us: int = 0
    outputs: tuple[str, ...] = ()
    parameters: dict[str, ParameterValue] = {}
    traceparent: str = ""
    payload_bytes: int = 0
    classifications: tuple[int, ...] = ()
    """Beside `outputs`; see `RequestHead`."""


class Answer(msgspec.Struct, eq=False):
    """A model's answer: raw tensors in wire form. The memoryviews are valid as long as the Answer is."""

    model: str
    version: str
    heads: tuple[TensorHead, ...]
    data: list[memoryview]
    parameters: dict[str, ParameterValue]
    queue_us: int
    compute_us: int
    batch_rows: int


Outcome = Answer | HeadraceError
Done = Callable[[Outcome], None]


class Pending(Protocol):
    """An accepted request that has not ended."""

    def cancel(self) -> None:
        """The caller left. `done` is called with Cancelled at once; a request that has ended is left alone."""


class IndexEntry(msgspec.Struct, frozen=True):
    """One version of a model in the repository's index; version, state and reason are empty for one never loaded."""

    name: str
    version: str
    state: str
    """`LOADING`, `READY`, `UNLOADING` or `UNAVAILABLE`."""
    reason: str


class ModelRepository(Protocol):
    """What operators ask of the model repository; repository.py has the errors."""

    async def load(
        self, model: str, *, service: str = "", config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load it, or load it anew; returns when it serves on every worker."""

    async def unload(self, model: str, *, service: str = "", unload_dependents: bool = False) -> None:
        """Unload it on every worker."""

    def index(self, *, service: str = "", ready: bool = False) -> list[IndexEntry]:
        """Every model and version, by name; with `ready` only those that serve."""


class Core(Protocol):
    """The gateway behind its doors."""

    @property
    def repository(self) -> ModelRepository:
        """Load, unload and the index."""

    @property
    def is_ready(self) -> bool:
        """Connected, not draining, and every configured group can be asked."""

    def resolve(self, principal: Principal, service: str, model: str, version: str) -> Target:
        """Group and card for a model; `service` empty takes the key's default service, else the configured one.

        Raises:
            NotFound: unknown service, model or version.  NoWorker: it was known, nobody serves it now.
            ModelNotReady: it is loading or failed to load; names the reason.  Draining, BrokerAway.
        """

    def submit(self, target: Target, request: InferRequest, done: Done) -> Pending:
        """Admit, queue and answer. Never raises; a refusal is given to `done`, possibly before this returns."""

    def models(self, service: str = "") -> list[tuple[str, ModelCard]]:
        """(group, card) of every model known now."""

    def statistics(self, group: str, model: str, version: str) -> ModelStats:
        """What workers counted for a version, as they told last; its gauges mean nothing."""

    async def refresh(self) -> None:
        """Have live workers tell their figures anew: a moment, or a third of a second where one does not answer."""
