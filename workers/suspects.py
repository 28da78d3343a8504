"""Redelivered requests, run one at a time with a note before each: who kills two workers alone is poison.

    note read -> answered: drop | started twice: PoisonRequest | else: wait until nothing runs, note +1, run, note done

Deliveries also count freezes, drains and prefetch, so they prove nothing; only a note written just before an execution
that shared the process with nobody does.

Source: docs/decisions/0001-pull-with-credits.md; subjects.md, `started.…`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog

from contract.errors import DeadlineExceeded, PoisonRequest
from contract.streams import started_stream
from contract.subjects import started_subject
from transport.base import Transport, TransportError
from workers.desk import Desk, Elsewhere
from workers.failures import ids_of
from workers.fences import StartedNote, judge, read_note, write_note
from workers.gate import Gate
from workers.host import RunAlone
from workers.items import WorkItem

RETURN_AFTER_S: Final = 1.0
"""Pause before a suspect whose note can't be read or written comes back."""

log = structlog.get_logger()


class Suspects:
    """The suspects in this worker's hands, oldest first; the lanes' row windows bound them."""

    def __init__(self, transport: Transport, desk: Desk, gate: Gate, group: str) -> None:
        self._transport = transport
        self._desk = desk
        self._gate = gate
        self._group = group
        self._waiting: deque[tuple[WorkItem, RunAlone]] = deque()
        self._has_some = asyncio.Event()
        self.is_busy = False
        self._stream = started_stream().name

    def add(self, item: WorkItem, run_alone: RunAlone) -> None:
        """Run it when its turn comes."""
        self._waiting.append((item, run_alone))
        self._has_some.set()

    def hand_back(self) -> None:
        """What has not started goes to other workers."""
        while self._waiting:
            item, _ = self._waiting.popleft()
            if not item.is_settled:
                self._desk.hand_back(item)
        self._has_some.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run suspects until `stop`; the one that runs then is finished."""
        while not stop.is_set():
            await self._has_some.wait()
            while self._waiting and not stop.is_set():
                self.is_busy = True
                try:
                    await self._run_next(*self._waiting.popleft())
                finally:
                    self.is_busy = False
                # Everybody else gets a turn before the next suspect stops them again.
                await asyncio.sleep(0)
            self._has_some.clear()

    async def _run_next(self, item: WorkItem, run_alone: RunAlone) -> None:
        if item.is_settled:
            return
        if self._desk.now_s() >= item.deadline_s:
            item.settle(DeadlineExceeded("its deadline passed in the queue"))
            return
        subject = started_subject(self._group, *item.key)
        try:
            note = read_note(await self._transport.last_message(self._stream, subject))
            verdict = judge(note)
            if verdict == "answered":
                item.settle(Elsewhere("it was answered before"))
                return
            if verdict == "poison":
                log.error("poison-request", model=item.model, num_started=note.num_started, **ids_of(item))
                item.settle(PoisonRequest(f"this request ended {note.num_started} workers that ran it alone"))
                return
            await self._gate.close()
            try:
                if item.is_settled or self._desk.now_s() >= item.deadline_s:
                    item.settle(DeadlineExceeded("its deadline passed in the queue"))
                    return
                started = StartedNote(note.num_started + 1)
                await self._transport.put_message(subject, write_note(started))
                await run_alone(item)
            finally:
                self._gate.open()
        except TransportError as e:
            log.warning("suspect-returned", model=item.model, error=str(e), **ids_of(item))
            if not item.is_settled:
                self._desk.hand_back(item, RETURN_AFTER_S)
            return
        self._desk.outbox.flush()
        # Nobody died. Who ended it without an answer (it was lost or cancelled) leaves the note as it was.
        ended = note if item.is_cancelled else StartedNote(started.num_started, is_done=True)
        try:
            await self._transport.put_message(subject, write_note(ended))
        except TransportError as e:
            log.warning("started-note-not-closed", error=str(e))
