"""The messages between gateways and workers. Data only; `envelope.py` turns them into bytes and back.

Messages are arrays on the wire. A newer minor version may append fields that have defaults: an older reader
ignores them, a newer reader fills in the default. Golden bytes per version: tests/unit/test_golden_bytes.py.

Times on the wire are broker time. Sizes are bytes. `id` numbers are unique within one gateway's life.
"""

from __future__ import annotations

import msgspec

from contract.model_config import GpuStats, ModelCard, ModelStats

ParameterValue = bool | int | float | str


class TensorHead(msgspec.Struct, array_like=True, frozen=True):
    """Name, OIP datatype and full shape (batch dimension included) of one tensor whose bytes lie in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Layout(msgspec.Struct, array_like=True, frozen=True):
    """The tensors of one request or result, in body order. Requests of a message that look alike share one."""

    tensors: tuple[TensorHead, ...]


class BlobRef(msgspec.Struct, array_like=True, frozen=True):
    """A payload that travels by reference: `num_parts` messages on `blob.<owner>.<blob_id>.<n>`, n from 0."""

    owner: str
    blob_id: str
    num_parts: int
    payload_bytes: int


class RequestHead(msgspec.Struct, array_like=True):
    """One request of a message. Its tensors lie in the body behind those of the requests before it."""

    id: int
    layout: int
    rows: int
    deadline_unix_ms: int
    admitted_unix_us: int
    sizes: tuple[int, ...] = ()
    """Bytes of each tensor; empty when every tensor's size follows from its shape (no BYTES)."""
    priority: int = 0
    """Triton's direction: 1 highest, 0 the model's default."""
    queue_timeout_us: int = 0
    request_id: str = ""
    tenant: str = "default"
    traceparent: str = ""
    parameters: dict[str, ParameterValue] = {}
    outputs: tuple[str, ...] = ()
    """Names of the wanted outputs; empty wants all."""
    attempt: int = 0
    """Counts publishes of the same request after the broker lost it."""
    blob: BlobRef | None = None
    """The request's whole body is there instead of in the message."""
    caller_id: str = ""
    """The `id` its body gave it, which the model sees; `request_id` is ours and what logs join on."""
    classifications: tuple[int, ...] = ()
    """Beside `outputs`, from format 1.1: so many of its highest classes instead of each row; 0, or empty, for none."""


class RequestMessage(msgspec.Struct, array_like=True):
    """Requests of one gateway tick for one lane."""

    gateway: str
    reply: str
    model: str
    version: str
    """Version digits, or empty for the model's default."""
    layouts: list[Layout]
    requests: list[RequestHead]


class ResultHead(msgspec.Struct, array_like=True):
    """The end of one request: tensors (`code` empty) or an error."""

    id: int
    layout: int = -1
    sizes: tuple[int, ...] = ()
    code: str = ""
    message: str = ""
    queue_us: int = 0
    compute_us: int = 0
    parameters: dict[str, ParameterValue] = {}
    blob: BlobRef | None = None
    batch_rows: int = 0
    """Rows of the execution this request ran in."""


class ReplyMessage(msgspec.Struct, array_like=True):
    """What finished together on one worker for one gateway."""

    worker: str
    model: str
    version: str
    layouts: list[Layout]
    results: list[ResultHead]


class CancelMessage(msgspec.Struct, array_like=True):
    """Requests of one gateway that nobody waits for any more; kept by workers until `deadline_unix_ms`."""

    gateway: str
    ids: list[int]
    deadline_unix_ms: int


class GatewayBeat(msgspec.Struct):
    """A gateway's heartbeat, one a second; dead after three missed."""

    gateway: str
    started_unix_ms: int
    version: str
    host: str
    pid: int
    state: str
    """`serving` or `draining`."""
    num_in_flight: int = 0
    address: str = ""


class WorkerBeat(msgspec.Struct):
    """A worker's heartbeat, one a second and at every change; dead after three missed."""

    worker: str
    group: str
    started_unix_ms: int
    version: str
    host: str
    pid: int
    state: str
    """`starting`, `serving` or `draining`."""
    models: list[ModelCard] = []
    stats: list[ModelStats] = []
    rss_bytes: int = 0
    gpus: list[GpuStats] = []
    """Those of its host, whoever uses them: workers of one host tell the same."""
    unloaded: dict[str, str] = {}
    """Models that it could load or had loaded, and does not serve; the reason is empty for one never loaded."""
    control_mode: str = ""
    """`none`, `poll` or `explicit`: whether it loads and unloads on request."""


class ControlRequest(msgspec.Struct):
    """What `headrace` or a gateway asks of one worker on its control subject."""

    action: str
    """`drain`, `beat`, `load` or `unload`."""
    model: str = ""
    config: str = ""
    """With `load`: Triton's JSON form of a config, to be used in place of the model's own."""
    files: BlobRef | None = None
    """With `load`: the model's files, as msgpack of {path: bytes}, to be used in place of the model's own."""


class ControlReply(msgspec.Struct):
    """A worker's answer: `error` is empty when it did what was asked."""

    error: str = ""
    code: str = ""
    """Of the error, as in `ResultHead`; empty from a worker of an older minor version."""
