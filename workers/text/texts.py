"""A model version's requests with text on their way to its queue: tokenised at once, or in a thread if that is long.

    item with text -> short: encode here -> queue
                   `> long:  wait for the thread -> encode there -> queue

Tokenising comes before batching, because the batcher joins rows by their number of tokens.

Invariants: every item given is queued or settled, once; an item that ended meanwhile is dropped
(tests/unit/test_texts.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from contract.errors import HeadraceError, InternalError
from contract.messages import Layout
from contract.text import TEXT_INPUT
from workers.items import Buffer, WorkItem
from workers.text.encode import EncodedText, TextEncoder
from workers.threads import Failure, JobThread

INLINE_BYTES: Final = 512
"""Texts of so many bytes take about half a millisecond; beyond, the event loop goes on meanwhile."""

log = structlog.get_logger()

Then = Callable[[WorkItem], None]
Found = EncodedText | HeadraceError | None
"""Ids, what is wrong with the request, or None for one that brings good ids of its own."""


class Texts:
    """Requests of one model version with a tokenizer."""

    def __init__(
        self, encoder: TextEncoder, settle: Callable[[WorkItem, HeadraceError], None], *, is_ordered: bool
    ) -> None:
        self._encoder = encoder
        self._settle = settle
        self._is_ordered = is_ordered
        self._waiting: deque[tuple[WorkItem, Then]] = deque()  # bounded by the lanes' row window
        self._thread = JobThread(f"texts-{encoder.rules.model}")
        self.num_open = 0
        """Items given and not yet passed on."""

    def take(self, item: WorkItem, then: Then) -> None:
        """Pass the item on to `then` with ids for text, now or later; or settle it with what is wrong with it."""
        size = text_bytes(item)
        if size > INLINE_BYTES or (self._is_ordered and self.num_open):
            self.num_open += 1
            self._waiting.append((item, then))
            self._next()
            return
        self._pass_on(item, then, encode_safely(self._encoder, item.layout, item.data))

    def close(self) -> None:
        """Take nothing more."""
        self._thread.close()

    def _next(self) -> None:
        while self._waiting and not self._thread.is_busy:
            item, then = self._waiting.popleft()
            if item.is_settled:
                self.num_open -= 1
            else:
                self._start(item, then)

    def _start(self, item: WorkItem, then: Then) -> None:
        encoder, layout, data = self._encoder, item.layout, item.data

        def encoded(found: Found | Failure[Found]) -> None:
            self.num_open -= 1
            if isinstance(found, Failure):
                found = InternalError(f"tokenising failed: {type(found.error).__name__}")
            try:
                self._pass_on(item, then, found)
            finally:
                self._next()

        self._thread.submit(lambda: encode_safely(encoder, layout, data), encoded)

    def _pass_on(self, item: WorkItem, then: Then, found: Found) -> None:
        if item.is_settled:
            return
        if isinstance(found, HeadraceError):
            self._settle(item, found)
            return
        if found is not None:
            item.layout, item.data = found.layout, found.data
            item.num_tokens, item.num_truncated = found.num_tokens, found.num_truncated
        then(item)


def text_bytes(item: WorkItem) -> int:
    """Bytes of the item's texts; 0 where it brings ids."""
    for tensor, part in zip(item.layout.tensors, item.data, strict=True):
        if tensor.name == TEXT_INPUT:
            return part.nbytes if isinstance(part, memoryview) else len(part)
    return 0


def encode_safely(encoder: TextEncoder, layout: Layout, data: Sequence[Buffer]) -> Found:
    """Never raises for what a caller sent or the library does."""
    try:
        if any(tensor.name == TEXT_INPUT for tensor in layout.tensors):
            return encoder.encode(layout, data)
        encoder.check_ids(layout, data)
    except HeadraceError as e:
        return e
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # a panic in the library's Rust is no Exception
        log.exception("text-not-tokenised", model=encoder.rules.model)
        return InternalError(f"tokenising for model {encoder.rules.model!r} failed: {type(e).__name__}")
    return None
