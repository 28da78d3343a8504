"""Whose turn it is to answer on one connection, and how long a caller may dawdle. Parses nothing; protocol.py does.

Responses keep the order of their requests, whether an Exchange or uvicorn's own cycle gives them. While many requests
are pipelined behind another, or while the caller does not read its answers, nothing more is read from it: a connection
holds one answer, a few small requests and what one read brought.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from contract.errors import HeadraceError, InvalidInput
from gateway.http.doorway import Doorway
from gateway.http.exchange import Exchange

IDLE_S: Final = 75
"""A connection without a request is closed after this; longer than the pools of common clients keep one."""
SILENT_S: Final = 30
"""A caller that sends nothing in mid-request, or takes nothing of its answer, for this long is cut off."""
RECEIVE_S: Final = 600
"""A request must be complete by then, however steadily it drips; as long as the longest deadline."""
LINGER_S: Final = 2.0
"""After a refusal in mid-body we read on for this long, so that the caller sees the answer and not a reset."""
MAX_PIPELINED: Final = 16
"""Requests waiting behind another on one connection before nothing more is read from it."""
_JOINED_BYTES: Final = 64 * 1024  # copying a response up to this size costs less than a second write


class TurnProtocol(HttpToolsProtocol):
    """One connection: who answers next, what is written, when it ends."""

    def __init__(self, config: Config, server_state: ServerState, doorway: Doorway) -> None:
        super().__init__(config, server_state, {})
        self.doorway = doorway
        self.pipeline: Any  # of (Exchange, None) beside uvicorn's (cycle, app)
        self.cycle: Any = None  # the youngest: an Exchange, or uvicorn's
        self.active: Any = None  # the one whose turn it is
        self.is_deaf = False  # nothing more is read as a request
        self.is_mid_message = False
        self.began_tick = doorway.tick
        self.seen_tick = doorway.tick
        self._is_next_due = False
        self._stuck_bytes = -1
        self._stuck_tick = 0
        self._is_aborted = False

    @property
    def is_idle(self) -> bool:
        """No request is being received or answered."""
        return not self.is_mid_message and not self.pipeline and (self.active is None or self.active.response_complete)

    # ------------------------------------------------------------------ turns

    def enqueue(self, exchange: Exchange) -> None:
        """The exchange answers after everything that came before it."""
        before = self.cycle
        self.cycle = exchange
        if (before is None or before.response_complete) and not self.flow.write_paused:
            self._take_turn(exchange)
            return
        self.pipeline.appendleft((exchange, None))
        # Up to here we go on reading: only a reader notices that its caller left.
        if len(self.pipeline) >= MAX_PIPELINED:
            self.flow.pause_reading()

    def _take_turn(self, exchange: Exchange) -> None:
        self.active = exchange
        exchange.is_turn = True
        if exchange.is_received:
            exchange.begin()
        elif exchange.wants_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.active = cycle
        if self.doorway.is_draining:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Called by whoever answered."""
        self.server_state.total_requests += 1
        self.seen_tick = self.doorway.tick
        if not self.transport.is_closing():
            self._advance()

    def _advance(self) -> None:
        """Go on with what waits behind the finished response, unless the caller must read first."""
        if self.flow.write_paused or (self.active is not None and not self.active.response_complete):
            return
        if not self.pipeline:
            self.flow.resume_reading()
        elif not self._is_next_due:
            # Not at once: a read can bring a thousand bad requests, each of which is answered on the spot.
            self._is_next_due = True
            self.loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        self._is_next_due = False
        if self.transport.is_closing() or not self.pipeline:
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self.flow.resume_reading()
        if isinstance(cycle, Exchange):
            self._take_turn(cycle)
        else:
            self._start_asgi_task(cycle, app)

    # ------------------------------------------------------------------ bytes out

    def respond(self, exchange: Exchange, head: bytes, parts: list[bytes | memoryview], num_bytes: int) -> None:
        """Write an exchange's response; see `exchange.Line`."""
        if exchange.disconnected or self.transport.is_closing():
            return
        is_last = not exchange.keep_alive or (self.doorway.is_draining and not self.pipeline)
        end = b"%bcontent-length: %d\r\n%b\r\n" % (head, num_bytes, b"connection: close\r\n" if is_last else b"")
        if num_bytes <= _JOINED_BYTES:
            self.transport.write(b"".join((end, *parts)))
        else:
            self.transport.writelines([end, *parts])
        if is_last:
            self._close_after_response()
        self.server_state.total_requests += 1
        self.seen_tick = self.doorway.tick
        if self.pipeline or self.flow.read_paused:
            self._advance()

    def _close_after_response(self) -> None:
        self.pipeline.clear()
        if self.is_deaf and self.transport.can_write_eof():
            # Bytes of a refused request are still on their way; closing now would reset the answer away.
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
        self.is_deaf = True

    def pause_writing(self) -> None:
        """The caller reads more slowly than it asks."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._advance()

    # ------------------------------------------------------------------ ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller is here."""
        super().connection_made(transport)
        self.doorway.counters.num_connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller left, or we closed: what it asked for is cancelled."""
        self.doorway.counters.num_connections -= 1
        self.is_deaf = True
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self.active, *waiting):
            if isinstance(cycle, Exchange):
                cycle.abandon()
            elif cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        if isinstance(self.cycle, Exchange):
            self.cycle = None
        super().connection_lost(exc)
        if not self.doorway.counters.num_connections:
            self.doorway.emptied.set()

    def shutdown(self) -> None:
        """Close if idle; a request that is there is answered first, and its answer says that it is the last."""
        if self.is_idle:
            self.transport.close()
        elif self.cycle is not None:
            self.cycle.keep_alive = False

    def sweep(self) -> None:
        """Once a second: cut off who is silent where something is due."""
        tick = self.doorway.tick
        left = self.transport.get_write_buffer_size()
        if left:
            if self._stuck_bytes != left:
                self._stuck_bytes, self._stuck_tick = left, tick
            elif tick - self._stuck_tick > SILENT_S and not self._is_aborted:
                self._is_aborted = True
                self.doorway.counters.num_cut_off += 1
                self.transport.abort()
            return
        self._stuck_bytes = -1
        if self.is_deaf or self.flow.read_paused:
            return
        silent_s = tick - self.seen_tick
        if self.is_mid_message and (silent_s > SILENT_S or tick - self.began_tick > RECEIVE_S):
            self.doorway.counters.num_cut_off += 1
            self.refuse(InvalidInput("the request was not complete in time"), 408)
        elif self.is_idle and silent_s > IDLE_S:
            self.transport.close()

    def refuse(self, error: HeadraceError, status: int = 0) -> None:
        """Answer `error` in its turn, read nothing more, close."""
        raise NotImplementedError
