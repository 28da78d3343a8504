"""What happens to open requests when the broker goes away, comes back, or lost a stream. Publishes nothing itself.

    disconnect → all gates close: requests are held
    reconnect  → per group: ensure the stream, open the gate, publish again what was never answered
    stream gone (a publish said so) → the same for one group
    forgotten (workers may have held us for dead) → published again, what the broker has stored included

A request whose publish may have reached a worker goes again with `attempt + 1`; where the model must not run twice
(`retry: never`) its caller gets BrokerAway instead.

Invariants: `plan` leaves no open entry out but those whose message may still be answered
(tests/property/test_exactly_once.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from contract.errors import BrokerAway
from contract.streams import BrokerLimits, StreamSpec, blob_stream, online_stream
from gateway.cancels import Cancels
from gateway.inflight import Entry, Inflight
from gateway.outbox import Outbox
from gateway.payloads import Payloads
from transport.base import SpecMismatch, Transport, TransportError

GRACE_S: Final = 2.0
"""New requests are held this long when a group can't be reached; then they are refused."""
FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 1.0
SLICE: Final = 256
"""Requests published again per loop tick, so that answers and new requests get their turn."""

log = structlog.get_logger("gateway.recovery")


def plan(entries: Iterable[Entry], *, is_new_life: bool) -> tuple[list[Entry], list[Entry]]:
    """(to publish again, must not run twice), in order of admission.

    `is_new_life`: the connection was lost, so publishes without a word were perhaps stored, perhaps not. Otherwise
    only the stream is gone, and the broker's word on them is still to come.
    """
    again: list[Entry] = []
    lost: list[Entry] = []
    for entry in entries:
        message = entry.message
        if message is None:
            if not entry.is_uploading:
                again.append(entry)
        elif message.fate == "refused":
            again.append(entry)
        elif message.fate != "sent" or is_new_life:
            (again if entry.lane.may_retry else lost).append(entry)
    return again, lost


class Recovery:
    """Keeps the gates of a gateway's groups."""

    def __init__(
        self,
        transport: Transport,
        *,
        groups: Sequence[str],
        limits: BrokerLimits,
        inflight: Inflight,
        outbox: Outbox,
        payloads: Payloads,
        cancels: Cancels,
        resend: Callable[[Entry], None],
        withdraw: Callable[[str], None],
        monotonic: Callable[[], float],
    ) -> None:
        """`resend` queues an entry again; `withdraw` takes what a group's lanes have waiting out of them."""
        self._transport = transport
        self._specs: dict[str, StreamSpec] = {group: online_stream(group, limits) for group in groups}
        self._blobs = blob_stream(limits)
        self._inflight = inflight
        self._outbox = outbox
        self._payloads = payloads
        self._cancels = cancels
        self._resend = resend
        self._withdraw = withdraw
        self._monotonic = monotonic
        self._closed_since_s = dict.fromkeys(groups, monotonic())
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closing = False
        self.num_recoveries = 0
        self.num_resent = 0

    @property
    def is_complete(self) -> bool:
        """Whether every group's gate is open."""
        return len(self._outbox.open_groups) == len(self._specs)

    async def start(self, timeout_s: float) -> None:
        """Ensure every stream; what does not come about in time is tried on in the background."""
        self._transport.on_disconnect(self._on_disconnect)
        self._transport.on_reconnect(self._on_reconnect)
        for group in self._specs:
            self._begin(group, is_new_life=True)
        await asyncio.wait(list(self._tasks.values()), timeout=timeout_s)

    def check(self, group: str) -> None:
        """Raises BrokerAway if the group can't be reached since longer than the grace."""
        if group in self._outbox.open_groups:
            return
        away_s = self._monotonic() - self._closed_since_s[group]
        if away_s > GRACE_S:
            raise BrokerAway(f"the queue of group {group!r} can't be reached since {away_s:.1f} s")

    def stream_gone(self, group: str) -> None:
        """A publish said that the group's stream does not exist."""
        if group in self._outbox.open_groups:
            # A closed gate means that a recovery runs already, or that the connection is lost as well.
            log.warning("stream-gone", group=group)
            self._shut(group)
            self._begin(group, is_new_life=False)

    def forgotten(self) -> None:
        """Workers may have dropped what we published: all of it goes again; who had it still answers once."""
        for group in list(self._outbox.open_groups):
            self._shut(group)
            self._begin(group, is_new_life=False)

    def reopen(self, group: str, *, is_new_life: bool) -> list[Entry]:
        """The group's stream is there: open its gate; returns what is to be queued again, in order of admission."""
        self._withdraw(group)
        mine = [entry for entry in self._inflight.entries() if entry.lane.address.group == group]
        again, lost = plan(mine, is_new_life=is_new_life)
        for entry in again:
            if entry.message is not None:
                entry.attempt += entry.message.fate != "refused"
                entry.message = None
            if is_new_life and entry.blob is not None:
                self._payloads.purge(entry.blob)
                entry.blob = None
        for entry in lost:
            entry.message = None
            reason = "the broker lost the queue under this request, and its model must not run twice"
            self._inflight.end(entry, BrokerAway(reason))
        self._outbox.reopen(group)
        self.num_recoveries += 1
        return again

    def take_stranded(self) -> None:
        """Try uploads again that failed for the broker's sake; called a few times a second."""
        stranded, self._payloads.stranded = self._payloads.stranded, []
        for entry in stranded:
            if not entry.is_open or entry.message is not None or entry.is_uploading:
                continue
            if entry.lane.address.group in self._outbox.open_groups:
                self._resend(entry)
            # While the gate is closed the entry is in the table without a message, and `plan` finds it there.

    async def close(self) -> None:
        """Stop what runs."""
        self._is_closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_disconnect(self) -> None:
        log.warning("broker-lost", num_open=len(self._inflight))
        for group in self._specs:
            self._shut(group)

    def _on_reconnect(self) -> None:
        log.info("broker-back", num_open=len(self._inflight))
        for group in self._specs:
            self._shut(group)
            self._begin(group, is_new_life=True)

    def _shut(self, group: str) -> None:
        if group in self._outbox.open_groups:
            self._outbox.open_groups.discard(group)
            self._closed_since_s[group] = self._monotonic()

    def _begin(self, group: str, *, is_new_life: bool) -> None:
        if self._is_closing:
            return
        running = self._tasks.get(group)
        if running is not None:
            running.cancel()
        task = asyncio.get_running_loop().create_task(self._recover(group, is_new_life=is_new_life))
        self._tasks[group] = task
        task.add_done_callback(lambda done: self._finished(group, done))

    def _finished(self, group: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(group) is task:
            del self._tasks[group]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("recovery-failed", group=group, exc_info=error)

    async def _recover(self, group: str, *, is_new_life: bool) -> None:
        if not await self._ensure(group):
            return
        again = self.reopen(group, is_new_life=is_new_life)
        self._cancels.tell_again()
        for at in range(0, len(again), SLICE):
            for entry in again[at : at + SLICE]:
                if entry.is_open and entry.message is None and not entry.is_uploading:
                    self._resend(entry)
                    self.num_resent += 1
            await asyncio.sleep(0)

    async def _ensure(self, group: str) -> bool:
        """Try until the streams are there; False once the connection is lost, the next one begins anew."""
        pause_s = FIRST_RETRY_S
        while self._transport.is_connected and not self._is_closing:
            try:
                await self._transport.ensure_stream(self._specs[group])
                await self._transport.ensure_stream(self._blobs)
            except SpecMismatch as e:
                log.error("stream-differs", group=group, error=str(e))
            except TransportError as e:
                log.warning("stream-not-ensured", group=group, error=str(e))
            else:
                return True
            await asyncio.sleep(pause_s)
            pause_s = min(LAST_RETRY_S, 2 * pause_s)
        return False
