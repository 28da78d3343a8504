"""Replies from workers to the ends of requests: first answer wins, large results are fetched first. Queues nothing.

Invariants: whatever a worker sends, only the requests it names are touched, each at most once
(tests/integration/test_gateway_core.py).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from contract.envelope import BadEnvelope, unpack
from contract.errors import InternalError
from contract.messages import ReplyMessage, ResultHead
from gateway.core import Outcome
from gateway.inflight import Entry, Inflight
from gateway.payloads import Payloads, fetch_failed
from gateway.replies import layout_sizes, make_outcome, result_sizes, slices
from transport.base import Disconnected, TransportError

log = structlog.get_logger("gateway.receiver")


class Receiver:
    """The reply inbox of one gateway."""

    def __init__(self, inflight: Inflight, payloads: Payloads, monotonic: Callable[[], float]) -> None:
        self._inflight = inflight
        self._payloads = payloads
        self._monotonic = monotonic
        self.num_unreadable = 0

    def on_reply(self, _subject: str, _reply: str, payload: bytes) -> None:
        """What finished together on one worker."""
        try:
            message, body = unpack(ReplyMessage, payload)
            layouts = [layout_sizes(layout) for layout in message.layouts]
        except BadEnvelope as e:
            self._unreadable(e)
            return
        now_s = self._monotonic()
        inflight = self._inflight
        at = 0
        for head in message.results:
            entry = inflight.get(head.id)
            outcome: Outcome | None = None
            try:
                sizes, total = result_sizes(head, layouts)
                if head.blob is None:
                    outcome = make_outcome(message, head, slices(body, at, sizes))
                    at += total
            except BadEnvelope as e:
                outcome = self._unreadable(e)
                at = len(body) + 1  # Where the next result begins is unknown now.
            if entry is not None:
                entry.lane.watch.answered(now_s)
                if outcome is not None:
                    inflight.end(entry, outcome, is_settled=True)
            if head.blob is not None:
                self._fetch(entry, message, head)

    def _fetch(self, entry: Entry | None, message: ReplyMessage, head: ResultHead) -> None:
        """The result is so large that it travels by reference."""
        ref = head.blob
        assert ref is not None
        if entry is None or not entry.is_open:
            self._payloads.purge(ref)
            return

        def on_fetched(got: bytes | TransportError) -> None:
            if isinstance(got, Disconnected):
                return  # Recovery publishes the request again.
            if isinstance(got, TransportError):
                self._inflight.end(entry, fetch_failed(ref, got), is_settled=True)
                return
            outcome: Outcome
            try:
                sizes, _ = result_sizes(head, [layout_sizes(layout) for layout in message.layouts])
                outcome = make_outcome(message, head, slices(memoryview(got), 0, sizes))
            except BadEnvelope as e:
                outcome = self._unreadable(e)
            self._inflight.end(entry, outcome, is_settled=True)

        self._payloads.fetch(ref, on_fetched)

    def _unreadable(self, error: BadEnvelope) -> InternalError:
        self.num_unreadable += 1
        log.error("reply-unreadable", error=str(error))
        return InternalError(f"a worker answered something unreadable: {error}")
