"""An HTTP door on free ports before a small core that echoes, and a raw socket to talk to it byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from contract.errors import Cancelled, HeadraceError, ModelNotReady, NotFound, Unauthenticated
from contract.messages import TensorHead, WorkerBeat
from contract.model_config import ModelCard, ModelConfig, ModelStats, TensorSpec, VersionState
from contract.principal import DEFAULT_PRINCIPAL, Principal
from contract.tensors import DATATYPES
from gateway.core import Answer, Done, IndexEntry, InferRequest, Target
from gateway.http.metrics import GatewayNumbers
from gateway.http.server import HttpDoor
from gateway.settings import GatewaySettings

WITHIN_S = 15.0
HOST = "127.0.0.1"


def _ident(name: str, datatype: str, dims: tuple[int, ...], max_batch_size: int = 8) -> ModelCard:
    config = ModelConfig(
        name,
        "python",
        max_batch_size=max_batch_size,
        inputs=(TensorSpec("IN", datatype, dims),),
        outputs=(TensorSpec("OUT", datatype, dims),),
    )
    triton = {"name": name, "backend": "python", "max_batch_size": max_batch_size}
    return ModelCard(config, (VersionState("1", "READY"), VersionState("3", "READY")), triton)


CARDS = {
    card.config.name: card
    for card in (
        _ident("ident_f32", "FP32", (-1,)),
        _ident("ident_i32", "INT32", (4,)),
        _ident("ident_bytes", "BYTES", (-1,), max_batch_size=0),
        _ident("team/model.v2 é", "FP32", (-1,)),
        *(_ident(f"flat_{datatype.lower()}", datatype, (-1,), max_batch_size=0) for datatype in DATATYPES),
    )
}


class Held:
    """An accepted request of a core that is told when to answer."""

    def __init__(self, request: InferRequest, done: Done, answer: Answer) -> None:
        self.request = request
        self.is_cancelled = False
        self._done: Done | None = done
        self._answer = answer

    def answer(self) -> None:
        self._end(self._answer)

    def cancel(self) -> None:
        if self._done is not None:
            self.is_cancelled = True
            self._end(Cancelled("the caller left"))

    def _end(self, outcome: Answer | HeadraceError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)


class FakeRepository:
    """Remembers what was asked of it, and refuses when told."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.refusal: HeadraceError | None = None
        self.entries = [
            IndexEntry("ident_f32", "1", "READY", ""),
            IndexEntry("ident_f32", "2", "UNAVAILABLE", "no such file"),
            IndexEntry("never", "", "", ""),
        ]

    async def load(
        self, model: str, *, service: str = "", config: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.asked.append(("load", model, service, config, files))
        if self.refusal is not None:
            raise self.refusal

    async def unload(self, model: str, *, service: str = "", unload_dependents: bool = False) -> None:
        self.asked.append(("unload", model, service, unload_dependents))
        if self.refusal is not None:
            raise self.refusal

    def index(self, *, service: str = "", ready: bool = False) -> list[IndexEntry]:
        self.asked.append(("index", service, ready))
        return [entry for entry in self.entries if entry.state == "READY" or not ready]


class EchoCore:
    """Answers each request with its inputs: at once, in the next tick, or when told."""

    def __init__(self) -> None:
        self.is_ready = True
        self.repository = FakeRepository()
        self.is_holding = False
        self.held: list[Held] = []
        self.requests: list[InferRequest] = []
        self.refusal: Exception | None = None
        self.change: Callable[[Answer], Answer] = lambda answer: answer
        self.stats: dict[tuple[str, str], ModelStats] = {}
        self.num_refreshed = 0

    def resolve(self, principal: Principal, service: str, model: str, version: str) -> Target:
        if service not in ("", "default"):
            raise NotFound(f"service {service!r} is not known")
        card = CARDS.get(model)
        if card is None:
            if model == "loading":
                raise ModelNotReady("model 'loading' version '1' is loading")
            raise NotFound(f"model {model!r} is not known")
        if version and version not in card.ready_versions:
            raise NotFound(f"model {model!r} has no version {version!r}")
        return Target(service or "default", "default", card, version)

    def submit(self, target: Target, request: InferRequest, done: Done) -> Held:
        if isinstance(self.refusal, HeadraceError):
            done(self.refusal)
            return Held(request, lambda _: None, self._echo(target, request))
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        held = Held(request, done, self.change(self._echo(target, request)))
        if self.is_holding:
            self.held.append(held)
        elif len(self.requests) % 2:
            held.answer()
        else:
            asyncio.get_running_loop().call_soon(held.answer)
        return held

    def models(self, service: str = "") -> list[tuple[str, ModelCard]]:
        if service not in ("", "default"):
            raise NotFound(f"service {service!r} is not known")
        return [("default", card) for card in CARDS.values()]

    def statistics(self, group: str, model: str, version: str) -> ModelStats:
        return self.stats.get((model, version), ModelStats(model, version))

    async def refresh(self, pause_s: float = 0.0) -> None:
        self.num_refreshed += 1

    @staticmethod
    def _echo(target: Target, request: InferRequest) -> Answer:
        heads = tuple(
            TensorHead(spec.name, head.datatype, head.shape)
            for spec, head in zip(target.card.config.outputs, request.heads, strict=True)
        )
        data = [memoryview(part) for part in request.data]
        version = target.version or target.card.ready_versions[0]
        return Answer(target.card.config.name, version, heads, data, {}, 1, 1, request.rows)


def identify(authorization: str | None) -> Principal:
    if authorization == "Bearer wrong":
        raise Unauthenticated("the key is not known")
    return DEFAULT_PRINCIPAL


def numbers() -> GatewayNumbers:
    stats = ModelStats("m", "1", num_success=3, num_inferences=12, num_executions=2, queue_us=50, compute_infer_us=70)
    beat = WorkerBeat("w1", "default", 0, "1", "host", 1, "serving", [], [stats], rss_bytes=1024)
    return GatewayNumbers([beat], {"messages": 5}, {"held_bytes": 9})


async def open_door(core: EchoCore, **settings: Any) -> HttpDoor:
    door = HttpDoor(core, identify, GatewaySettings(http_port=0, metrics_port=0, **settings), numbers)
    await door.start()
    return door


class Reply:
    """One HTTP response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) == {"error"}
        return str(self.json["error"])


class RawClient:
    """A socket that speaks just enough HTTP to be wrong in any way it likes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> RawClient:
        self.reader, self.writer = await asyncio.open_connection(HOST, self._port, limit=2**27)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def read(self, *, is_head: bool = False) -> Reply:
        async with asyncio.timeout(WITHIN_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            status = int(head[0].split(" ")[1])
            num_bytes = 0 if is_head or status in (100, 204) else int(headers["content-length"])
            return Reply(status, headers, await self.reader.readexactly(num_bytes))

    async def ask(self, raw: bytes) -> Reply:
        self.send(raw)
        return await self.read()

    async def is_closed(self) -> bool:
        """Wait until the door has closed; true if nothing more came before."""
        async with asyncio.timeout(WITHIN_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


def http(body: bytes = b"", *headers: str, path: str = "/v2/models/ident_f32/infer", method: str = "POST") -> bytes:
    """A request; Content-Length is added unless a header says how long the body is."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def floats(*values: float, **fields: Any) -> bytes:
    """An OIP request to `ident_f32`."""
    tensor = {"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}
    return json.dumps({"inputs": [tensor], **fields}).encode()


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


async def works(client: RawClient) -> bool:
    """Whether the connection answers a good request as if nothing had been before."""
    reply = await client.ask(http(floats(1, 2, id="after")))
    return reply.status == 200 and reply.json["id"] == "after" and reply.json["outputs"][0]["data"] == [1, 2]
