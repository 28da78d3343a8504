"""What every front door says to the gateway's core and hears from it: a request, its target, its one end.

Data and protocols only; `dispatch.py` is the core.

Invariants: `done` is called exactly once for every submitted request, whatever happens to the broker, the workers or
the caller (tests/property/test_exactly_once.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from contract.errors import HeadraceError
from contract.messages import ParameterValue, TensorHead
from contract.model_config import ModelCard, ModelStats
from contract.principal import Principal

NO_PARAMETERS: Final[dict[str, ParameterValue]] = {}
"""Never written to."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: resolved once, before its body is decoded."""

    service: str
    group: str
    card: ModelCard
    version: str
    """Version digits, or empty for whatever the worker's policy serves."""


class InferRequest:
    """One decoded and validated request. Its tensors are raw bytes in wire form, in the order of `heads`.

    Who decodes a body makes it; the door then says whose it is and until when (`ask`).
    """

    __slots__ = (
        "caller_id",
        "classifications",
        "data",
        "deadline_s",
        "heads",
        "outputs",
        "parameters",
        "payload_bytes",
        "principal",
        "priority",
        "queue_timeout_us",
        "request_id",
        "rows",
        "sizes",
        "traceparent",
    )

    def __init__(
        self,
        rows: int,
        heads: tuple[TensorHead, ...],
        data: list[bytes | memoryview],
        sizes: tuple[int, ...] = (),
        payload_bytes: int = 0,
        caller_id: str = "",
        priority: int = 0,
        queue_timeout_us: int = 0,
        outputs: tuple[str, ...] = (),
        parameters: dict[str, ParameterValue] = NO_PARAMETERS,
        classifications: tuple[int, ...] = (),
    ) -> None:
        """`sizes`: bytes of each tensor where a BYTES tensor is among them, else empty. `caller_id`: OIP `id` of the
        request, echoed in the answer. `payload_bytes`: of all tensors; 0 has them counted.
        `classifications`: beside `outputs`, see `RequestHead`.
        """
        self.rows = rows
        self.heads = heads
        self.data = data
        self.sizes = sizes
        self.payload_bytes = payload_bytes
        self.caller_id = caller_id
        self.priority = priority
        self.queue_timeout_us = queue_timeout_us
        self.outputs = outputs
        self.parameters = parameters
        self.classifications = classifications

    def ask(self, principal: Principal, request_id: str, deadline_s: float, traceparent: str) -> None:
        """`request_id`: ours and unique, answers and logs carry it. `deadline_s`: on this process's clock."""
        self.principal = principal
        self.request_id = request_id
        self.deadline_s = deadline_s
        self.traceparent = traceparent


class Answer:
    """A model's answer: raw tensors in wire form. The memoryviews are valid as long as the Answer is."""

    __slots__ = ("batch_rows", "compute_us", "data", "heads", "model", "parameters", "queue_us", "version")

    def __init__(
        self,
        model: str,
        version: str,
        heads: tuple[TensorHead, ...],
        data: list[memoryview],
        parameters: dict[str, ParameterValue],
        queue_us: int,
        compute_us: int,
        batch_rows: int,
    ) -> None:
        self.model = model
        self.version = version
        self.heads = heads
        self.data = data
        self.parameters = parameters
        self.queue_us = queue_us
        self.compute_us = compute_us
        self.batch_rows = batch_rows


Outcome = Answer | HeadraceError
Done = Callable[[Outcome], None]


class Pending(Protocol):
    """An accepted request that has not ended."""

    def cancel(self) -> None:
        """The caller left. `done` is called with Cancelled at once; a request that has ended is left alone."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
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

    async def refresh(self, pause_s: float = 0.0) -> None:
        """Have live workers tell their figures anew, `pause_s` after they last did at the earliest.

        Takes a moment, or a third of a second where one does not answer.
        """
