"""A small gateway-side client: publishes request messages to lanes, collects the replies by request id."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contract.envelope import pack, unpack
from contract.messages import CancelMessage, GatewayBeat, Layout, ReplyMessage, RequestHead, RequestMessage, ResultHead
from contract.streams import BrokerLimits, blob_stream, online_stream, started_stream
from contract.subjects import Lane, LaneAddress, cancel_subject, gateway_beat_subject
from contract.tensors import from_array, to_array
from transport.base import Stored, Transport

ANSWER_TIMEOUT_S = 30.0


@dataclass
class Answer:
    """One result of one reply."""

    worker: str
    version: str
    head: ResultHead
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    num_in_message: int = 1

    @property
    def code(self) -> str:
        return self.head.code


class Requester:
    """Plays a gateway."""

    def __init__(self, transport: Transport, group: str = "default", name: str = "") -> None:
        self.transport = transport
        self.group = group
        self.name = name or secrets.token_hex(4)
        self.answers: dict[int, list[Answer]] = {}
        self.outcomes: list[object] = []
        self._inbox = transport.new_inbox("r")
        self._ids = iter(range(1, 1_000_000))
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> "Requester":
        limits = BrokerLimits()
        for spec in (online_stream(self.group, limits), blob_stream(limits), started_stream()):
            await self.transport.ensure_stream(spec)
        await self.transport.subscribe(self._inbox, self._on_reply)
        return self

    def beat(self) -> None:
        message = GatewayBeat(self.name, 1, "0", "host", 1, "serving")
        self.transport.publish(gateway_beat_subject(self.name), pack(message))

    def send(
        self,
        model: str,
        requests: list[dict[str, np.ndarray]],
        *,
        version: str = "",
        lane: Lane = "norm",
        timeout_s: float = 20.0,
        ids: list[int] | None = None,
        body: bytes | None = None,
        layouts: list[Layout] | None = None,
        **head: Any,
    ) -> list[int]:
        """One message of `requests`; its request ids."""
        ids = ids or [next(self._ids) for _ in requests]
        now = self.transport.clock.now_ms(time.monotonic())
        table: dict[Layout, int] = {}
        heads, parts = [], []
        for number, arrays in zip(ids, requests, strict=True):
            tensors = [from_array(name, a) for name, a in arrays.items()]
            layout = Layout(tuple(t for t, _ in tensors))
            has_bytes = any(t.datatype == "BYTES" for t, _ in tensors)
            fields: dict[str, Any] = {
                "rows": layout.tensors[0].shape[0] if layout.tensors[0].shape else 1,
                "deadline_unix_ms": now + int(timeout_s * 1000),
                "admitted_unix_us": now * 1000,
                "sizes": tuple(len(d) for _, d in tensors) if has_bytes else (),
                "request_id": f"r{number}",
                "caller_id": str(number),
                **head,
            }
            heads.append(RequestHead(id=number, layout=table.setdefault(layout, len(table)), **fields))
            if not head.get("blob"):
                parts.extend(d for _, d in tensors)
        message = RequestMessage(self.name, self._inbox, model, version, layouts or list(table), heads)
        payload = pack(message, parts if body is None else [body])
        self.publish(model, payload, version=version, lane=lane)
        return ids

    def publish(self, model: str, payload: bytes, *, version: str = "", lane: Lane = "norm") -> None:
        address = LaneAddress(self.group, model, version or "any", lane)
        self.transport.publish_stored(address.subject, payload, self.outcomes.append)

    def cancel(self, *ids: int, for_s: float = 30.0) -> None:
        until_ms = self.transport.clock.now_ms(time.monotonic()) + int(for_s * 1000)
        self.transport.publish(cancel_subject(self.group), pack(CancelMessage(self.name, list(ids), until_ms)))

    async def answer(self, number: int, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """The first answer to a request."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: number in self.answers)
        return self.answers[number][0]

    async def all(self, numbers: list[int], timeout_s: float = ANSWER_TIMEOUT_S) -> list[Answer]:
        async with asyncio.timeout(timeout_s):
            return [await self.answer(n, timeout_s) for n in numbers]

    @property
    def all_stored(self) -> bool:
        return all(isinstance(o, Stored) for o in self.outcomes)

    def _on_reply(self, _subject: str, _reply: str, payload: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._read(payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, payload: bytes) -> None:
        message, body = unpack(ReplyMessage, payload)
        at = 0
        for head in message.results:
            arrays: dict[str, np.ndarray] = {}
            if head.layout >= 0:
                source: bytes | memoryview = body[at:]
                if head.blob is not None:
                    source = await self.transport.get_blob(head.blob)
                start = 0
                for i, tensor in enumerate(message.layouts[head.layout].tensors):
                    size = head.sizes[i] if head.sizes else None
                    if size is None:
                        size = to_size(tensor)
                    arrays[tensor.name] = to_array(tensor, bytes(source[start : start + size]))
                    start += size
                if head.blob is None:
                    at += start
            answer = Answer(message.worker, message.version, head, arrays, len(message.results))
            self.answers.setdefault(head.id, []).append(answer)
        assert at == len(body), "a reply's body has no bytes left over"
        async with self._news:
            self._news.notify_all()


def to_size(tensor: Any) -> int:
    from contract.tensors import byte_size

    size = byte_size(tensor.datatype, tensor.shape)
    assert size is not None
    return size
