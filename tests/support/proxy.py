"""A TCP proxy that delays, throttles, cuts, or swallows in silence. Runs in a thread and loop of its own.

Attributes and methods may be used from the test's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

CHUNK_BYTES = 64 * 1024
MAX_UNDERWAY = 256
"""Chunks in each direction of a connection; a full pipe stops reading, as a network does."""
WITHIN_S = 10.0


class Proxy:
    """Listens on a port of its own and passes on to `target` inside a `with` block."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.delay_s = 0.0
        """Of each direction."""
        self.bytes_per_s = 0.0
        """Of each direction of a connection; 0 is no limit."""
        self.num_accepted = 0
        self._is_refusing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN_S)
        self._loop.close()

    def be_good(self) -> None:
        """Pass everything on at once from now on."""
        self.delay_s = self.bytes_per_s = 0.0

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Reset every connection, and whoever comes, inside the block."""
        self._is_refusing = True
        self._in_loop(self._cut)
        try:
            yield
        finally:
            self._is_refusing = False

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """Connections stay open and new ones are accepted; nothing is passed on inside the block."""
        self._in_loop(self._passes.clear)
        try:
            yield
        finally:
            self._in_loop(self._passes.set)

    def _in_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(WITHIN_S)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        self.num_accepted += 1
        self._writers.add(writer)
        await self._passes.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.get_running_loop().create_task(self._pipe(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_UNDERWAY)

        async def read() -> None:
            with contextlib.suppress(OSError):
                while chunk := await reader.read(CHUNK_BYTES):
                    await underway.put((loop.time() + self.delay_s, chunk))
            await underway.put((loop.time() + self.delay_s, b""))

        reading = loop.create_task(read())
        try:
            while True:  # ends with the connection
                due_s, chunk = await underway.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                await self._passes.wait()
                if not chunk:
                    return
                writer.write(chunk)
                await writer.drain()
                if self.bytes_per_s:
                    await asyncio.sleep(len(chunk) / self.bytes_per_s)
        except OSError:
            return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._writers.discard(writer)
            writer.close()
