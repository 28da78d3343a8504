"""Callers that ask without pause, each request with an input of its own, and what became of every one of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType

from tests.support.cluster_http import TIMEOUT, Connection, ConnectionEnded, json_request

MARGIN_S = 1.5
"""How much later than its deadline an answer may reach a caller on a busy two-core machine."""
NUMBERS = itertools.count(1_000)


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request ended, as its caller saw it."""

    number: int
    status: int
    """0: no answer, `code` says why."""
    code: str
    took_s: float
    ended_s: float


class Load:
    """`num_callers` callers of one model while the block runs; each waits for its answer before it asks again."""

    def __init__(
        self, ports: Sequence[int], model: str, *, num_callers: int, timeout_ms: int = 10_000, pause_s: float = 0.0
    ) -> None:
        self.endings: list[Ending] = []
        self.timeout_s = timeout_ms / 1000
        self._ports = ports
        self._model = model
        self._num_callers = num_callers
        self._pause_s = pause_s
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Condition()

    async def __aenter__(self) -> Load:
        for n in range(self._num_callers):
            self._tasks.append(asyncio.create_task(self._call(self._ports[n % len(self._ports)])))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Every open request still gets its end."""
        self._stop.set()
        async with asyncio.timeout(self.timeout_s + MARGIN_S + 10):
            await asyncio.gather(*self._tasks)

    @property
    def num_right(self) -> int:
        return sum(e.status == 200 for e in self.endings)

    async def has(self, num_right: int, within_s: float = 30.0) -> None:
        """Wait for so many right answers from now on."""
        wanted = self.num_right + num_right
        async with asyncio.timeout(within_s), self._ended:
            await self._ended.wait_for(lambda: self.num_right >= wanted)

    async def _call(self, port: int) -> None:
        connection = Connection(port)
        while not self._stop.is_set():
            self.endings.append(await call_once(connection, self._model, timeout_s=self.timeout_s))
            async with self._ended:
                self._ended.notify_all()
            if self._pause_s or self.endings[-1].status != 200:
                await asyncio.sleep(self._pause_s or 0.02)  # who is refused comes back as a client would
        connection.close()


async def call_once(connection: Connection, model: str, *, timeout_s: float, number: int = 0) -> Ending:
    """One request with a number of its own. A wrong answer fails the test on the spot."""
    number = number or next(NUMBERS)
    started_s = time.monotonic()
    status, code = 0, ""
    try:
        answer = await connection.ask(
            "POST",
            f"/v2/models/{model}/infer",
            json_request([number, -number], request_id=str(number)),
            [(TIMEOUT, str(int(timeout_s * 1000)))],
            within_s=timeout_s + MARGIN_S + 5,
        )
    except ConnectionRefusedError:
        code = "refused"
    except ConnectionEnded:
        code = "connection-ended"
    except TimeoutError:
        code = "hangs"
    else:
        status, code = answer.status, answer.code
        if status == 200:
            assert answer.data == [number, -number], (number, answer.data)
            assert answer.json["id"] == str(number)
        else:
            assert answer.error
            assert code, answer
            if status == 503:
                assert int(answer.headers["retry-after"]) >= 1
    ended_s = time.monotonic()
    return Ending(number, status, code, ended_s - started_s, ended_s)


async def burst(
    port: int, model: str, num: int, *, timeout_s: float = 10.0, numbers: Sequence[int] = ()
) -> list[Ending]:
    """So many requests at once, each on a connection of its own."""
    connections = [Connection(port) for _ in range(num)]
    wanted = numbers or [0] * num
    try:
        calls = (call_once(c, model, timeout_s=timeout_s, number=n) for c, n in zip(connections, wanted, strict=True))
        return list(await asyncio.gather(*calls))
    finally:
        for connection in connections:
            connection.close()


def assert_each_ended_once(endings: Sequence[Ending], timeout_s: float, allowed: Collection[str] = ()) -> None:
    """Each has its own right answer or one of the `allowed` errors, and none came after its deadline."""
    found = Counter(e.code for e in endings if e.status != 200)
    assert set(found) <= set(allowed), f"{found}, allowed are {sorted(allowed)}"
    late = [e for e in endings if e.took_s > timeout_s + MARGIN_S]
    assert not late, late[:5]
    assert len({e.number for e in endings}) == len(endings)


def slowest_s(endings: Sequence[Ending]) -> float:
    return max(e.took_s for e in endings)
