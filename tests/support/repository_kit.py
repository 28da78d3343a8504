"""A repository on disk whose models are one line of text, and a worker on an in-process broker that follows it.

`kind` in a version folder: `x3` multiplies by three, `fail <why>` does not load, `hold` loads when the test lets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from contract.envelope import pack, unpack
from contract.messages import ControlReply, ControlRequest, WorkerBeat
from contract.model_config import VersionState
from contract.streams import lane_consumer
from contract.subjects import WORKER_BEATS, LaneAddress, worker_control_subject
from tests.support.requester import Answer, Requester
from tests.support.worker_kit import WAIT_S, row
from transport.base import StreamGone
from transport.memory import MemoryBroker
from workers.backends.base import InstanceSource
from workers.life import Worker
from workers.settings import WorkerSettings

CONFIG = """
backend: "double"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
"""
POLL_S = 0.05

_edits = count(1)


class Disk:
    """The repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    def config(self, model: str = "m", extra: str = "", text: str = CONFIG) -> None:
        self._write(self.root / model / "config.pbtxt", text + extra)

    def version(self, version: str, kind: str, model: str = "m") -> None:
        self._write(self.root / model / version / "kind", kind)

    def remove(self, version: str = "", model: str = "m") -> None:
        shutil.rmtree(self.root / model / version)

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(0, next(_edits)))  # two edits within a tick of the file system's clock look unlike


class Times:
    """An instance."""

    is_request_wise = False
    holds_process = False

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.is_closed = False

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        assert not self.is_closed, "a closed instance runs nothing"
        return {"OUT": inputs["IN"] * self.factor}

    def run_requests(self, requests: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.is_closed = True


class Following:
    """A worker that follows a Disk."""

    def __init__(self, broker: MemoryBroker, disk: Disk, requester: Requester, **settings: Any) -> None:
        self.disk = disk
        self.requester = requester
        self.let_go = threading.Event()
        self.loads: list[tuple[str, str]] = []
        """(version, kind) of every load."""
        self.instances: list[Times] = []
        self.beat: WorkerBeat | None = None
        self._broker = broker
        self._settings = {"model_control_mode": "poll", "repository_poll_s": POLL_S, "drain_timeout_s": 5.0} | settings
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, source: InstanceSource) -> Times:
        kind = (source.version_dir / "kind").read_text()
        self.loads.append((source.version, kind))
        if kind == "hold":
            assert self.let_go.wait(WAIT_S), "the test let go"
            kind = "x9"
        if kind.startswith("fail"):
            raise RuntimeError(kind.removeprefix("fail "))
        self.instances.append(Times(float(kind.removeprefix("x"))))
        return self.instances[-1]

    def states(self, model: str = "m") -> dict[str, VersionState]:
        cards = self.beat.models if self.beat is not None else []
        return {s.version: s for card in cards if card.config.name == model for s in card.versions}

    def ready(self, model: str = "m") -> set[str]:
        return {v for v, s in self.states(model).items() if s.state == "READY"}

    async def until(self, holds: Any) -> None:
        """Wait for a heartbeat after which `holds()`."""
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(holds)

    async def ask(self, version: str = "", model: str = "m") -> Answer:
        return (await self.requester.all(self.requester.send(model, [row(1)], version=version)))[0]

    async def control(self, action: str, model: str = "m", **fields: Any) -> ControlReply:
        payload = pack(ControlRequest(action, model, **fields))
        subject = worker_control_subject(self.worker.name)
        return unpack(ControlReply, await self.requester.transport.request(subject, payload, WAIT_S))[0]

    async def backlog(self, model: str, version: str) -> tuple[int, int]:
        spec = lane_consumer(LaneAddress("default", model, version, "norm"))
        return await self.requester.transport.lane_backlog(spec)

    async def until_no_consumer(self, model: str, version: str) -> None:
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(StreamGone):
                while await self.backlog(model, version):  # noqa: ASYNC110 - the broker tells no event
                    await asyncio.sleep(POLL_S)

    def _on_beat(self, _subject: str, _reply: str, payload: bytes) -> None:
        beat, _ = unpack(WorkerBeat, payload)
        if beat.worker == self.worker.name:
            self.beat = beat
            task = asyncio.get_running_loop().create_task(self._tell())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    @asynccontextmanager
    async def running(self, slot: Path | None = None) -> AsyncIterator[Following]:
        transport, listener = await self._broker.connect("worker"), await self._broker.connect("listener")
        settings = WorkerSettings(model_repository=self.disk.root, **self._settings)
        self.worker = Worker(settings, transport, load=self.load, slot=slot)
        await listener.subscribe(WORKER_BEATS, self._on_beat)
        life = asyncio.create_task(self.worker.run())
        try:
            yield self
        finally:
            self.let_go.set()
            self.worker.stop.set()
            async with asyncio.timeout(WAIT_S):
                await life
            await listener.close()
            await transport.close()


class Steady:
    """Requests without a pause; every one must be answered."""

    def __init__(self, following: Following, *versions: str) -> None:
        self._following = following
        self._versions = versions or ("",)
        self.answers: list[Answer] = []
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Steady:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        async with asyncio.timeout(WAIT_S):
            await self._task
        assert self.answers
        assert {a.code for a in self.answers} == {""}, [a.head.message for a in self.answers if a.code][:3]

    async def _run(self) -> None:
        while not self._stop.is_set():
            self.answers += await asyncio.gather(*(self._following.ask(v) for v in self._versions * 4))
