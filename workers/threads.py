"""One thread per model instance: a job at a time, its outcome handed back to the event loop. Knows no models.

A thread that does not come back can't be ended in Python: it is abandoned, its late outcome is dropped, and it dies
with the process (it is a daemon).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Failure(Generic[T]):
    """A job raised `error`."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class JobThread:
    """A thread that runs jobs given from the event loop, one at a time."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.is_busy = False
        self.is_abandoned = False
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | Failure[T]], None]) -> None:
        """Run `job` in the thread, then `done` with what it returned or raised in the loop."""
        assert not self.is_busy, "one job at a time"
        assert not self.is_abandoned, "nobody waits for an abandoned thread"
        self.is_busy = True
        self._jobs.put((job, done))

    async def call(self, job: Callable[[], T]) -> T:
        """`job`'s result; raises what it raised. The thread stays busy if the caller is cancelled."""
        result: asyncio.Future[T] = self._loop.create_future()

        def done(outcome: T | Failure[T]) -> None:
            if result.cancelled():
                return
            if isinstance(outcome, Failure):
                result.set_exception(outcome.error)
            else:
                result.set_result(outcome)

        self.submit(job, done)
        return await result

    def tell(self, callback: Callable[[], None]) -> None:
        """From the thread: call it in the loop, unless the thread was abandoned meanwhile."""
        try:
            self._loop.call_soon_threadsafe(self._pass_on, callback)
        except RuntimeError:
            return  # the loop is closed: the process is ending

    def abandon(self) -> None:
        """Its job will not come back in time: nobody waits for it, and if it ends after all the thread ends too."""
        self.is_abandoned = True
        self._jobs.put(None)

    def close(self) -> None:
        """End after the job that runs now."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            outcome: Any
            try:
                outcome = job()
            except BaseException as e:  # noqa: BLE001 - whatever a model raises belongs to its caller
                outcome = Failure(e)
            try:
                self._loop.call_soon_threadsafe(self._finish, done, outcome)
            except RuntimeError:
                return  # the loop is closed: the process is ending
            del entry, job, done, outcome

    def _pass_on(self, callback: Callable[[], None]) -> None:
        if not self.is_abandoned:
            callback()

    def _finish(self, done: Callable[[Any], None], outcome: Any) -> None:
        self.is_busy = False
        if not self.is_abandoned:
            done(outcome)
