"""What all models of one worker share: its open requests, whose answers nobody reads, and the way out. Runs nothing.

Invariants: an item is settled once and then leaves its message once, whoever ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import structlog

from contract.deadline import BrokerClock
from contract.errors import Cancelled, HeadraceError
from contract.model_config import ModelStats
from transport.base import Delivery, Transport
from workers.blocks import Block
from workers.counters import VersionCounters, reason_of
from workers.fences import Fences
from workers.inhand import InHand
from workers.items import Key, Outcome, WorkItem
from workers.replies import Outbox, is_unread, run_of

MAX_FETCHES: Final = 4
"""Payloads by reference fetched at once; each may have up to the gateway's `max_request_bytes`."""
LAST_WORD_S: Final = 60.0
"""So long the counters of a version that was unloaded are still told: every scrape sees how it ended."""
CLOCK_SLACK_S: Final = 0.02
"""How far this process and a gateway may differ on when a deadline passes; only the name of a failure depends on it."""

log = structlog.get_logger()


class Elsewhere(Cancelled):
    """This copy of a request ended, not the request: another worker answers it, or has."""


class VersionQueue(Protocol):
    """Where a model version's requests wait."""

    version: str

    @property
    def takes_blocks(self) -> bool:
        """Whether plain messages should come as one Block now."""

    def forget(self, keys: Collection[Key]) -> None:
        """These have ended by another hand: none of them is started any more."""

    def offer(self, item: WorkItem) -> None:
        """Queue it; it is settled later, or at once if the queue refuses it."""

    def offer_block(self, block: Block) -> None:
        """Run it this tick."""

    def offer_suspect(self, item: WorkItem) -> None:
        """Run it alone, with notes, when nothing else runs."""


class Desk:
    """What all models' intakes of one worker share: open items, fences, the way out."""

    def __init__(self, transport: Transport, fences: Fences, outbox: Outbox, now_s: Callable[[], float]) -> None:
        self.transport = transport
        self.fences = fences
        self.outbox = outbox
        self.now_s = now_s
        self.open: dict[Key, WorkItem] = {}
        self.queues: list[VersionQueue] = []
        self.fetches: set[asyncio.Task[None]] = set()
        self.fetch_slots = asyncio.Semaphore(MAX_FETCHES)
        self.is_draining = False
        self.num_unread_messages = 0
        self.num_expired = 0
        self.num_cancelled = 0
        self.num_duplicates = 0
        self._counters: dict[tuple[str, str], VersionCounters] = {}
        self._told_s: dict[tuple[str, str], float] = {}

    @property
    def clock(self) -> BrokerClock:
        """Broker time."""
        return self.transport.clock

    def counters_of(self, model: str, version: str) -> VersionCounters:
        """They outlive a load: a version that is loaded again counts on. There are as many as were ever loaded here."""
        counters = self._counters.get((model, version))
        if counters is None:
            counters = self._counters[model, version] = VersionCounters(self.clock.now_ms(self.now_s()))
        return counters

    def with_last_words(self, served: Sequence[ModelStats]) -> list[ModelStats]:
        """`served`, and the counters of what was served until a moment ago: what its last requests added."""
        now_s, told = self.now_s(), {(stats.model, stats.version) for stats in served}
        self._told_s.update(dict.fromkeys(told, now_s))
        left = [key for key, at_s in self._told_s.items() if key not in told and now_s - at_s < LAST_WORD_S]
        return [*served, *(self.counters_of(*key).to_stats(*key) for key in left)]

    def count_failure(self, model: str, version: str, error: HeadraceError, times_s: tuple[float, float]) -> None:
        """A request ended badly here; `times_s` are those of its admission and its deadline."""
        if isinstance(error, Elsewhere):
            return
        now_s, (admitted_s, deadline_s) = self.now_s(), times_s
        # A gateway cancels what expires, and tells no reason.
        has_expired = isinstance(error, Cancelled) and now_s >= deadline_s - CLOCK_SLACK_S
        reason = "EXPIRED" if has_expired else reason_of(error)
        self.counters_of(model, version).add_failure(reason, int((now_s - admitted_s) * 1e6))

    def settled(self, item: WorkItem, outcome: Outcome) -> None:
        """An item ended: its result goes out, unless nobody reads it."""
        self.open.pop(item.key, None)
        if isinstance(outcome, HeadraceError):
            self.count_failure(item.model, item.version, outcome, (item.admitted_s, item.deadline_s))
        hand = _hand(item)
        run = run_of(item, outcome, hand)
        if is_unread(outcome) or hand.delivery.is_lost:
            self.outbox.drop(run)
        else:
            self.outbox.add((hand.reply, item.model, item.version), run)

    def drop_cancelled(self, gateway: str, ids: list[int]) -> None:
        """These callers left."""
        self._drop([(gateway, request) for request in ids], Cancelled("the caller left"))

    def drop_dead(self, now_s: float) -> None:
        """Nobody reads the answers of gateways that are dead by now."""
        dead = {g for g in {key[0] for key in self.open} if self.fences.dead_since_s(g, now_s) is not None}
        if dead:
            log.warning("gateway-dead", gateways=sorted(dead))
            self._drop([key for key in self.open if key[0] in dead], Cancelled("its gateway is dead"))

    def drop_lost(self, deliveries: list[Delivery]) -> None:
        """These deliveries are somebody else's by now."""
        log.warning("deliveries-lost", num_messages=len(deliveries))
        lost = [key for key, item in self.open.items() if _hand(item).delivery.is_lost]
        self._drop(lost, Elsewhere("its delivery was lost"))

    def begun(self) -> set[InHand]:
        """Messages of which a request runs or has left: handed back, they would bring it to another worker again."""
        hands = ((_hand(item), item.is_waiting) for item in self.open.values())
        return {hand for hand, is_waiting in hands if hand.is_begun or not is_waiting}

    def hand_back(self, item: WorkItem, after_s: float = 0.0) -> None:
        """Another worker shall have it: its message is not acked."""
        _hand(item).return_after_s = after_s
        item.settle(Elsewhere("handed back to the queue"))

    def _drop(self, keys: Collection[Key], why: Cancelled) -> None:
        waiting: set[Key] = set()
        for key in keys:
            item = self.open.get(key)
            if item is None:
                continue
            self.num_cancelled += 1
            item.is_cancelled = True
            if item.is_waiting:
                waiting.add(key)
            item.settle(why)
        if waiting:
            for queue in self.queues:
                queue.forget(waiting)


def _hand(item: WorkItem) -> InHand:
    assert isinstance(item.delivery, InHand)
    return item.delivery
