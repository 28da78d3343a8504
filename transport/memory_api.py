"""The part of JetStream's API that this package uses, answered by the in-process broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec

from transport.memory_streams import MemoryConsumer, MemoryStream, Refused, Send, overlaps
from transport.memory_streams import matches as is_match

API: Final = "$JS.API."
ACK: Final = "$JS.ACK."

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class MemoryApi:
    """All streams of one broker."""

    def __init__(self, now_s: Callable[[], float], unix_offset_s: float, send: Send) -> None:
        self._now_s = now_s
        self._unix_offset_s = unix_offset_s
        self._send = send
        self._streams: dict[str, MemoryStream] = {}
        self._created = itertools.count(1)

    def lose_streams(self) -> None:
        """Forget everything."""
        self._streams.clear()

    def tick(self) -> None:
        """Let time pass."""
        for stream in list(self._streams.values()):
            stream.tick(self._now_s(), self._send)

    def publish(self, subject: bytes, payload: bytes, reply: bytes) -> bool:
        """Store it in the stream that takes the subject, if one does."""
        name = subject.decode()
        stream = next((s for s in self._streams.values() if _takes(s, name)), None)
        if stream is None:
            return False
        try:
            sequence = stream.store(subject, payload, self._now_s())
            answer: dict[str, Any] = {"stream": stream.config["name"], "seq": sequence}
        except Refused as e:
            answer = _error(e)
        if reply:
            self._send(reply, reply, b"", _encode(answer), b"")
        for consumer in stream.consumers.values():
            consumer.pump(self._now_s(), self._send)
        return True

    def handle(self, subject: bytes, payload: bytes, reply: bytes) -> bool:
        """Whether it was a word to the stream API (answered here), or an ack."""
        name = subject.decode()
        if name.startswith(ACK):
            self._ack(name, payload)
            return True
        if not name.startswith(API):
            return False
        operation = name.removeprefix(API)
        if operation.startswith("CONSUMER.MSG.NEXT."):
            self._pull(operation, payload, reply)
        elif operation.startswith("DIRECT.GET."):
            self._direct_get(operation, reply)
        else:
            try:
                answer = self._operate(operation, _decode(payload) if payload else {})
            except Refused as e:
                answer = _error(e)
            if reply:
                self._send(reply, reply, b"", _encode(answer), b"")
        return True

    def _operate(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        match operation.split("."):
            case ["STREAM", "CREATE", name]:
                answer = self._create_stream(name, request)
            case ["STREAM", "INFO", name]:
                stream = self._stream(name)
                answer = {"config": stream.config, "created": stream.created}
            case ["STREAM", "PURGE", name]:
                answer = {"success": True, "purged": self._stream(name).purge(request.get("filter", ">"))}
            case ["STREAM", "MSG", "DELETE", name]:
                if not self._stream(name).remove(request["seq"]):
                    raise Refused(400, 10043, f"sequence {request['seq']} not found")
                answer = {"success": True}
            case ["CONSUMER", "CREATE", stream_name, name, *_]:
                answer = self._create_consumer(self._stream(stream_name), name, request["config"])
            case ["CONSUMER", "INFO", stream_name, name]:
                answer = _info(self._consumer(stream_name, name))
            case ["CONSUMER", "DELETE", stream_name, name]:
                self._consumer(stream_name, name).deleted(self._send)
                del self._stream(stream_name).consumers[name]
                answer = {"success": True}
            case _:
                raise Refused(400, 10003, f"bad request: {operation}")
        return answer

    def _create_stream(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        stream = self._streams.get(name)
        if stream is not None and stream.config != config:
            raise Refused(400, 10058, "stream name already in use with a different configuration")
        if stream is None:
            for other in self._streams.values():
                if any(overlaps(a, b) for a in config["subjects"] for b in other.config["subjects"]):
                    raise Refused(400, 10065, "subjects overlap with an existing stream")
            stream = self._streams[name] = MemoryStream(config, str(next(self._created)))
        return {"config": stream.config, "created": stream.created}

    def _create_consumer(self, stream: MemoryStream, name: str, config: dict[str, Any]) -> dict[str, Any]:
        consumer = stream.consumers.get(name)
        if consumer is not None and consumer.config != config:
            raise Refused(400, 10148, "consumer already exists")
        if consumer is None:
            for other in stream.consumers.values():
                if overlaps(config["filter_subject"], other.config["filter_subject"]):
                    raise Refused(400, 10100, "filtered consumer not unique on workqueue stream")
            consumer = MemoryConsumer(stream, config, str(next(self._created)), self._unix_offset_s)
            stream.consumers[name] = consumer
        return _info(consumer)

    def _pull(self, operation: str, payload: bytes, reply: bytes) -> None:
        stream_name, name = operation.split(".")[3:]
        try:
            consumer = self._consumer(stream_name, name)
        except Refused:
            self._send(reply, reply, b"", b"", b"NATS/1.0 503\r\n\r\n")
            return
        consumer.pull(_decode(payload), reply, self._now_s(), self._send)

    def _direct_get(self, operation: str, reply: bytes) -> None:
        _, _, name, subject = operation.split(".", 3)
        stream = self._streams.get(name)
        if stream is None or not stream.config["allow_direct"]:
            self._send(reply, reply, b"", b"", b"NATS/1.0 503\r\n\r\n")
            return
        message = stream.last(subject.encode())
        if message is None:
            self._send(reply, reply, b"", b"", b"NATS/1.0 404 Message Not Found\r\n\r\n")
        else:
            self._send(reply, reply, b"", message.payload, f"NATS/1.0\r\nNats-Stream: {name}\r\n\r\n".encode())

    def _ack(self, name: str, verb: bytes) -> None:
        _, _, stream_name, consumer_name, _, sequence, *_ = name.split(".")
        stream = self._streams.get(stream_name)
        consumer = stream.consumers.get(consumer_name) if stream is not None else None
        if consumer is not None:
            consumer.ack(int(sequence), verb, self._now_s(), self._send)

    def _stream(self, name: str) -> MemoryStream:
        stream = self._streams.get(name)
        if stream is None:
            raise Refused(404, 10059, "stream not found")
        return stream

    def _consumer(self, stream: str, name: str) -> MemoryConsumer:
        consumer = self._stream(stream).consumers.get(name)
        if consumer is None:
            raise Refused(404, 10014, "consumer not found")
        return consumer


def _takes(stream: MemoryStream, subject: str) -> bool:
    return any(is_match(pattern, subject) for pattern in stream.config["subjects"])


def _info(consumer: MemoryConsumer) -> dict[str, Any]:
    return {
        "config": consumer.config,
        "created": consumer.created,
        "num_pending": consumer.num_pending(),
        "num_ack_pending": len(consumer.in_hand),
    }


def _error(refused: Refused) -> dict[str, Any]:
    error = {"code": refused.code, "err_code": refused.err_code, "description": refused.description}
    return {"error": error}
