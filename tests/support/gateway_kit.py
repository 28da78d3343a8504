"""Cards, beats and requests for the gateway's tests."""

import time
from collections.abc import Sequence
from typing import Any

from contract.messages import TensorHead, WorkerBeat
from contract.model_config import DynamicBatching, ModelCard, ModelConfig, ModelState, QueuePolicy, VersionState
from contract.principal import DEFAULT_PRINCIPAL, Principal
from gateway.core import InferRequest

EAGER = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=4))


def card(name: str = "tiny", versions: dict[str, ModelState] | None = None, **config: Any) -> ModelCard:
    states = {"1": "READY"} if versions is None else versions
    found = ModelConfig(name=name, backend="python", **{"max_batch_size": 8, **config})
    return ModelCard(found, tuple(VersionState(v, s, "" if s == "READY" else "because") for v, s in states.items()))


def beat(worker: str = "w1", group: str = "default", *cards: ModelCard, state: str = "serving") -> WorkerBeat:
    return WorkerBeat(worker, group, 1, "0", "host", 1, state, list(cards))


def infer_request(
    data: bytes = b"\0" * 16,
    *,
    deadline_s: float | None = None,
    principal: Principal = DEFAULT_PRINCIPAL,
    rows: int = 1,
    heads: Sequence[TensorHead] | None = None,
    caller_id: str = "",
    **more: Any,
) -> InferRequest:
    shapes = tuple(heads) if heads is not None else (TensorHead("x", "FP32", (rows, len(data) // 4 // rows)),)
    until_s = time.monotonic() + 30 if deadline_s is None else deadline_s
    traceparent = more.pop("traceparent", "")
    request = InferRequest(rows, shapes, [data], caller_id=caller_id, **more)
    request.ask(principal, "r-1", until_s, traceparent)
    return request
