"""Every request with text is queued or settled, once: at once when short, through the thread when long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from contract.errors import Cancelled, HeadraceError, InternalError, InvalidInput
from tests.support.text_kit import encoder, text_request
from workers.items import WorkItem
from workers.text.encode import TextEncoder
from workers.text.texts import INLINE_BYTES, Texts

WITHIN_S = 20.0
LONG = "a river " * INLINE_BYTES


class Desk:
    """Where items go."""

    def __init__(self, own: TextEncoder | None = None, *, is_ordered: bool = False) -> None:
        self.queued: list[WorkItem] = []
        self.ended: list[tuple[WorkItem, HeadraceError]] = []
        self._news = asyncio.Event()
        self.texts = Texts(own or encoder(), self._settle, is_ordered=is_ordered)

    def give(self, *texts: str | bytes) -> WorkItem:
        layout, data = text_request(*texts)
        item = WorkItem(("g", 1), "m", len(texts), layout, data, 1e9, 0.0, 0.0)
        self.texts.take(item, self._queue)
        return item

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await self._news.wait()
                self._news.clear()

    def _queue(self, item: WorkItem) -> None:
        self.queued.append(item)
        self._news.set()

    def _settle(self, item: WorkItem, error: HeadraceError) -> None:
        item.settle(error)
        self.ended.append((item, error))
        self._news.set()


class Slow:
    """A tokenizer that waits until it is let go."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.go = threading.Event()
        self.num_calls = 0

    def encode_batch_fast(self, texts: list[str]) -> Any:
        self.num_calls += 1
        assert self.go.wait(WITHIN_S)
        return self._own.encode_batch_fast(texts)


def slow_encoder() -> tuple[TextEncoder, Slow]:
    own = encoder()
    slow = Slow(own.tokenizer)
    return TextEncoder(slow, own.rules, own.max_tokens, own.refuses_longer, own.vocabulary), slow


async def test_a_short_text_is_queued_at_once() -> None:
    desk = Desk()
    item = desk.give("a river")
    assert desk.queued == [item]
    assert [head.name for head in item.layout.tensors] == ["input_ids", "attention_mask"]
    assert item.layout.tensors[0].shape == (1, 4)
    assert (item.num_tokens, desk.texts.num_open) == (4, 0)


async def test_a_long_text_is_tokenised_in_the_thread_while_short_ones_pass() -> None:
    own, slow = slow_encoder()
    desk = Desk(own)
    long = desk.give(LONG)
    assert (desk.queued, desk.texts.num_open) == ([], 1)
    slow.go.set()
    short = desk.give("a")
    assert short in desk.queued
    await desk.until(lambda: long in desk.queued)
    assert long.num_tokens == 2 * INLINE_BYTES + 2
    assert desk.texts.num_open == 0


async def test_long_texts_wait_for_each_other_and_all_come_through() -> None:
    desk = Desk()
    items = [desk.give(LONG) for _ in range(5)]
    await desk.until(lambda: len(desk.queued) == 5)
    assert desk.queued == items


async def test_order_is_kept_where_it_is_asked_for() -> None:
    own, slow = slow_encoder()
    desk = Desk(own, is_ordered=True)
    long, short = desk.give(LONG), desk.give("a")
    assert desk.queued == []
    slow.go.set()
    await desk.until(lambda: len(desk.queued) == 2)
    assert desk.queued == [long, short]


async def test_a_request_that_ended_meanwhile_is_dropped() -> None:
    own, slow = slow_encoder()
    desk = Desk(own)
    running, waiting, last = (desk.give(LONG) for _ in range(3))
    running.settle(Cancelled("gone"))
    waiting.settle(Cancelled("gone"))
    slow.go.set()
    await desk.until(lambda: bool(desk.queued))
    assert desk.queued == [last]
    assert slow.num_calls == 2
    assert desk.texts.num_open == 0


@pytest.mark.parametrize("text", [b"\xff", b"\xff" * (INLINE_BYTES + 1)])
async def test_a_bad_text_ends_its_own_request_only(text: bytes) -> None:
    desk = Desk()
    bad, good = desk.give(text), desk.give("a")
    await desk.until(lambda: bool(desk.ended))
    assert [(item, type(error)) for item, error in desk.ended] == [(bad, InvalidInput)]
    assert desk.queued == [good]


class Panic(BaseException):
    """What Rust's panics look like in Python."""


@pytest.mark.parametrize("text", ["a", LONG])
@pytest.mark.parametrize("raised", [Panic("index out of bounds"), RuntimeError("broken")])
async def test_a_tokenizer_that_breaks_ends_that_request_only(text: str, raised: BaseException) -> None:
    own, slow = slow_encoder()
    desk = Desk(own)
    slow.encode_batch_fast = None  # type: ignore[assignment]

    def broken(_texts: list[str]) -> Any:
        raise raised

    slow.encode_batch_fast = broken  # type: ignore[method-assign]
    item = desk.give(text)
    await desk.until(lambda: bool(desk.ended))
    ((ended, error),) = desk.ended
    assert ended is item
    assert isinstance(error, InternalError)
    assert type(raised).__name__ in error.message
