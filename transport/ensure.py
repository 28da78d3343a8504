"""Streams and consumers through JetStream's raw API: create, compare, complain; and the few questions asked of them.

Creation never changes what exists: another process's idea of a stream is shown, not overwritten (nats-py's manager
would update it in silence). Concurrent creators of equal things all succeed.

Source: NATS JetStream API reference (`$JS.API.STREAM.*`, `$JS.API.CONSUMER.*`, `action: create` since 2.10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from contract.streams import ConsumerSpec, StreamSpec
from transport.base import NoResponders, SpecMismatch, StreamGone, TransportError
from transport.link import Link, encode_subject, status_of
from transport.mux import NO_STREAM, RequestMux

API_TIMEOUT_S: Final = 5.0
NO_CONSUMER: Final = 10014
CONSUMER_EXISTS: Final = 10148

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ApiFailure(TransportError):
    """JetStream refused; `err_code` is its own number for why."""

    def __init__(self, what: str, err_code: int, description: str) -> None:
        super().__init__(f"{what}: {description} ({err_code})")
        self.err_code = err_code


class JetStream:
    """The broker's stream API."""

    def __init__(self, link: Link, requests: RequestMux) -> None:
        self._link = link
        self._requests = requests
        self._streams: dict[str, StreamSpec] = {}

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Create it, or check that what exists is equal."""
        try:
            answer = await self._call(f"STREAM.CREATE.{spec.name}", spec.to_api())
        except ApiFailure as e:
            # Not only when it differs: nats-server looks for room before it sees that nothing is to be created.
            answer = await self._existing(spec.name, e)
        _compare(f"stream {spec.name}", spec.to_api(), answer["config"])
        self._streams[spec.name] = spec

    async def _existing(self, name: str, refusal: ApiFailure) -> dict[str, Any]:
        try:
            return await self._call(f"STREAM.INFO.{name}")
        except ApiFailure as e:
            raise (refusal if e.err_code == NO_STREAM else e) from None

    async def ensure_consumer(self, spec: ConsumerSpec) -> str:
        """Likewise; returns when it was created, which tells it from an earlier one of the same name."""
        request = {"stream_name": spec.stream, "config": spec.to_api(), "action": "create"}
        try:
            answer = await self._call(f"CONSUMER.CREATE.{spec.stream}.{spec.name}.{spec.filter_subject}", request)
        except ApiFailure as e:
            if e.err_code != CONSUMER_EXISTS:
                raise _gone(e) from None
            answer = await self._call(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
        _compare(f"consumer {spec.name} of {spec.stream}", spec.to_api(), answer["config"])
        return str(answer["created"])

    async def ensure_lane(self, spec: ConsumerSpec) -> str:
        """A lane's consumer, and before it the stream if this process has ensured it once: a broker that restarted
        has lost both.
        """
        stream = self._streams.get(spec.stream)
        if stream is not None:
            await self.ensure_stream(stream)
        return await self.ensure_consumer(spec)

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Remove it; one that is not there is fine."""
        try:
            await self._call(f"CONSUMER.DELETE.{stream}.{consumer}")
        except ApiFailure as e:
            if e.err_code not in (NO_CONSUMER, NO_STREAM):
                raise

    async def purge(self, stream: str, subject_filter: str) -> int:
        """Delete what the filter matches."""
        try:
            answer = await self._call(f"STREAM.PURGE.{stream}", {"filter": subject_filter})
        except ApiFailure as e:
            raise _gone(e) from None
        return int(answer["purged"])

    def purge_soon(self, stream: str, subject_filter: str) -> None:
        """Likewise, not awaited."""
        self._link.send(encode_subject(f"$JS.API.STREAM.PURGE.{stream}"), _encode({"filter": subject_filter}))

    def delete_message(self, stream: str, sequence: int) -> None:
        """Delete one message, not awaited."""
        self._link.send(encode_subject(f"$JS.API.STREAM.MSG.DELETE.{stream}"), b'{"seq":%d,"no_erase":true}' % sequence)

    async def last_message(self, stream: str, subject: str, timeout_s: float = API_TIMEOUT_S) -> bytes | None:
        """The newest payload on `subject` by direct get. Raises StreamGone."""
        try:
            answer = await self._requests.ask(f"$JS.API.DIRECT.GET.{stream}.{subject}".encode(), b"", timeout_s)
        except NoResponders:
            raise StreamGone(f"stream {stream} is not there, or has no direct get") from None
        return None if status_of(answer.header) == b"404" else answer.payload

    async def backlog(self, spec: ConsumerSpec) -> tuple[int, int]:
        """(waiting, in workers' hands)."""
        try:
            info = await self._call(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
        except ApiFailure as e:
            raise _gone(e) from None
        return int(info["num_pending"]), int(info["num_ack_pending"])

    async def _call(self, name: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        body = b"" if request is None else _encode(request)
        try:
            answer = await self._requests.ask(encode_subject(f"$JS.API.{name}"), body, API_TIMEOUT_S)
        except NoResponders:
            raise TransportError("the broker has JetStream off, or this user may not use it") from None
        decoded = _decode(answer.payload)
        error = decoded.get("error")
        if error is not None:
            raise ApiFailure(name, int(error.get("err_code", 0)), str(error.get("description", "")))
        return decoded


def _gone(failure: ApiFailure) -> TransportError:
    return StreamGone(str(failure)) if failure.err_code in (NO_STREAM, NO_CONSUMER) else failure


def _compare(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """The broker leaves false and empty fields out; fields that we don't name are its own business."""
    wrong = [k for k, v in wanted.items() if found.get(k, type(v)()) != v]
    if wrong:
        ours = {k: wanted[k] for k in wrong}
        theirs = {k: found.get(k) for k in wrong}
        raise SpecMismatch(f"{what} exists with other values: wanted {ours}, found {theirs}")
