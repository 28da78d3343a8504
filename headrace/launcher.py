"""A whole Headrace on one machine: nats-server, a gateway, a worker pool; started in order, stopped in order.

    broker listens → gateway and workers start together → every model ready → serve → gateway, workers, broker stop

A part that dies before everything serves ends the start; later it is started again, on the same ports and folder.
Invariants: whatever ends it, error, signal or kill -9, no process of it is left (tests/e2e/test_cli_up.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.settings import GatewaySettings
from headrace.broker import (
    BrokerPlan,
    config_text,
    find_binary,
    machine_memory_bytes,
    plan_file,
    plan_memory,
    reserved_bytes,
)
from headrace.children import Child, start_module, start_program
from headrace.cluster import Cluster, Readiness, follow, readiness
from headrace.config.settings import HeadraceSettings
from headrace.parts import Part, how_it_ended, start_part
from headrace.ports import choose_port
from headrace.probe import wait_listening, wait_status
from headrace.runfile import DataFolder, RunNote
from headrace.say import Say
from transport.connection import connect
from workers.settings import WorkerSettings

BROKER_START_S = 10.0
BROKER_STOP_S = 5.0
GATEWAY_START_S = 30.0
KILL_AFTER_S = 8.0
"""How much longer than its drain time-out a part may take to stop."""
LOOPBACK = "127.0.0.1"

T = TypeVar("T")


class StartFailed(Exception):
    """It can't run; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Running:
    """Where everything listens once it serves."""

    http_url: str
    metrics_url: str
    broker_url: str
    models: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]


class Launcher:
    """One run: `start`, then `wait`, which keeps every part alive, and `stop` in every case."""

    def __init__(self, settings: HeadraceSettings, say: Say, *, show_logs: bool = False) -> None:
        self._settings = settings
        self._say = say
        self._show_logs = show_logs
        self._folder = DataFolder(settings.up.data_dir.absolute())
        self._parts: list[Part] = []
        self._has_folder = False
        self._note: RunNote | None = None

    async def start(self) -> Running:
        """Start everything and wait until every model is ready or has failed to load.

        Raises:
            StartFailed, PortTaken, AlreadyRunning, NoBinary: call `stop` all the same.
        """
        repository = check_repository(self._settings.worker.model_repository)
        self._folder.take()
        self._has_folder = True
        plan = self._plan_broker()
        broker_url = await self._start_broker(plan)
        gateway = self._gateway_settings(broker_url)
        worker = self._settings.worker.model_copy(
            update={"model_repository": repository, "broker": _at(self._settings.worker, broker_url)}
        )
        await self._add(partial(start_module, "gateway", "gateway.app", gateway, self._log("gateway")))
        await self._add(partial(start_module, "workers", "workers.pool", worker, self._log("workers")))
        await self._guard(self._await_gateway(gateway))
        state = await self._guard(self._await_models(gateway, broker_url, worker.num_processes))
        running = Running(
            f"http://{_connectable(gateway.host)}:{gateway.http_port}",
            f"http://{_connectable(gateway.host)}:{gateway.metrics_port}/metrics",
            broker_url,
            state.ready,
            state.failed,
        )
        self._note = self._note_of(running, plan, repository)
        self._leave_note()
        return running

    async def wait(self) -> str:
        """Start again what dies; return when a part dies too often, with what there is to say about it."""
        keeping = {asyncio.create_task(part.keep(self._on_revived)): part for part in self._parts}
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
            ended = done.pop()
            return f"{keeping[ended].name} {ended.result()}\n{keeping[ended].child.last_words()}".rstrip()
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def stop(self) -> None:
        """Stop what was started, the front door first. Safe at any moment, and again."""
        drains = {"gateway": self._settings.gateway.drain_timeout_s, "workers": self._settings.worker.drain_timeout_s}
        while self._parts:
            # Requests in flight need the workers until the gateway has drained, both need the broker.
            part = min(self._parts, key=lambda p: _STOP_ORDER.index(p.name))
            await part.child.stop(drains[part.name] + KILL_AFTER_S if part.name in drains else BROKER_STOP_S)
            self._parts.remove(part)
        self._release()

    def kill(self) -> None:
        """End everything at once; for those who can't wait."""
        for part in self._parts:
            part.child.kill()

    # -------- steps

    def _plan_broker(self) -> BrokerPlan:
        up = self._settings.up
        port = self._port("nats-server", up.broker_port, LOOPBACK)
        store = self._folder.path / "nats"
        store.mkdir(exist_ok=True)
        stat = os.statvfs(store)
        reserved = max(reserved_bytes(s.broker) for s in (self._settings.gateway, self._settings.worker))
        return BrokerPlan(
            port,
            store,
            plan_memory(up.broker_max_memory_bytes, machine_memory_bytes(), reserved),
            plan_file(up.broker_max_file_bytes, stat.f_bavail * stat.f_frsize),
        )

    async def _start_broker(self, plan: BrokerPlan) -> str:
        binary = find_binary()
        config = self._folder.path / "nats-server.conf"
        config.write_text(config_text(plan), encoding="utf-8")
        command = [str(binary), "--config", str(config)]
        await self._add(partial(start_program, "broker", command, self._log("nats-server")))
        # A first connect to a port that does not listen yet costs a client two seconds.
        if not await self._guard(wait_listening(LOOPBACK, plan.port, BROKER_START_S)):
            raise StartFailed(f"nats-server does not listen on port {plan.port} after {BROKER_START_S:.0f} s")
        self._say.step("broker", f"nats-server on {LOOPBACK}:{plan.port}")
        return f"nats://{LOOPBACK}:{plan.port}"

    def _gateway_settings(self, broker_url: str) -> GatewaySettings:
        asked = self._settings.gateway
        return asked.model_copy(
            update={
                "http_port": self._port("HTTP", asked.http_port, asked.host),
                "metrics_port": self._port("metrics", asked.metrics_port, asked.host),
                "broker": _at(asked, broker_url),
            }
        )

    async def _await_gateway(self, gateway: GatewaySettings) -> None:
        if not await wait_listening(_connectable(gateway.host), gateway.http_port, GATEWAY_START_S):
            raise StartFailed(f"the gateway does not listen on port {gateway.http_port} after {GATEWAY_START_S:.0f} s")
        self._say.step("gateway", f"HTTP on {gateway.host}:{gateway.http_port}, metrics on port {gateway.metrics_port}")

    async def _await_models(self, gateway: GatewaySettings, broker_url: str, num_workers: int) -> Readiness:
        """Follow the workers' beats until all have loaded, then until the gateway has heard so too."""
        cluster, changed = Cluster(), asyncio.Event()
        try:
            async with asyncio.timeout(self._settings.up.ready_timeout_s):
                transport = await connect(_at(gateway, broker_url), name="headrace-up")
                try:
                    await follow(transport, cluster, changed.set)
                    state = await self._await_serving(cluster, changed, num_workers)
                finally:
                    await transport.close()
                for model in state.ready:
                    path = f"/v2/models/{model}/ready"
                    await wait_status(_connectable(gateway.host), gateway.http_port, path, 200)
        except TimeoutError:
            state = readiness(cluster)
            raise StartFailed(
                f"not ready after {self._settings.up.ready_timeout_s:.0f} s (up.ready_timeout_s): "
                f"{state.num_serving} of {num_workers} workers serve, ready: {', '.join(state.ready) or 'no model'}, "
                f"loading: {', '.join(state.loading) or 'none'}\n{self._part('workers').child.last_words()}"
            ) from None
        if not state.ready and self._settings.worker.model_control_mode == "none":
            reasons = "\n".join(f"  {name}: {reason}" for name, reason in state.failed)
            raise StartFailed(f"no model could be loaded\n{reasons}" if reasons else "no model was found to load")
        return state

    async def _await_serving(self, cluster: Cluster, changed: asyncio.Event, num_workers: int) -> Readiness:
        said: set[str] = set()
        while True:  # ends by the caller's time-out
            changed.clear()
            state = readiness(cluster)
            for model in state.ready:
                if model not in said:
                    said.add(model)
                    self._say.step("model", f"{model} is ready")
            if state.num_serving >= num_workers and not state.loading:
                for model, reason in state.failed:
                    self._say.warning(f"model {model} failed to load: {reason}")
                return state
            await changed.wait()

    # -------- parts

    def _port(self, what: str, wanted: int, host: str) -> int:
        port = choose_port(what, wanted, host=host, is_fixed=self._settings.up.is_port_fixed)
        if wanted and port != wanted:
            self._say.step("port", f"{wanted} is taken, {what} uses {port}")
        return port

    async def _guard(self, step: Coroutine[Any, Any, T]) -> T:
        """`step`, unless a part dies first."""
        task = asyncio.create_task(step)
        try:
            await asyncio.wait([task, *(p.child.ended for p in self._parts)], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StartFailed(self._obituary())
            return task.result()
        finally:
            task.cancel()

    def _obituary(self) -> str:
        dead = next(p.child for p in self._parts if p.child.ended.done())
        return f"{dead.name} {how_it_ended(dead.ended.result())}\n{dead.last_words()}".rstrip()

    async def _add(self, start: Callable[[], Awaitable[Child]]) -> None:
        self._parts.append(await start_part(start))

    def _part(self, name: str) -> Part:
        return next(p for p in self._parts if p.name == name)

    def _on_revived(self, part: Part, how: str) -> None:
        self._say.step(part.name, f"{how}, started again as pid {part.child.pid}")
        self._leave_note()

    def _log(self, name: str) -> Path | None:
        """A log file that begins with this run."""
        if self._show_logs:
            return None
        path = self._folder.path / "logs" / f"{name}.log"
        path.unlink(missing_ok=True)
        return path

    def _note_of(self, running: Running, plan: BrokerPlan, repository: Path) -> RunNote:
        urls = (running.http_url, running.metrics_url, running.broker_url)
        return RunNote(os.getpid(), *urls, str(repository), time.time(), plan.max_memory_bytes)

    def _leave_note(self) -> None:
        if self._note is not None:
            self._folder.write(msgspec.structs.replace(self._note, pids={p.name: p.child.pid for p in self._parts}))

    def _release(self) -> None:
        if self._has_folder:
            self._folder.give_back()
            self._has_folder = False


_STOP_ORDER = ("gateway", "workers", "broker")


def check_repository(path: Path) -> Path:
    """The folder's absolute path.

    Raises:
        StartFailed: it is missing or holds no model.
    """
    if not path.is_dir():
        raise StartFailed(f"model repository {path} does not exist; `make models` builds ./model_repository")
    if not any(child.is_dir() and not child.name.startswith(".") for child in path.iterdir()):
        raise StartFailed(f"model repository {path} holds no model folder; `make models` builds ./model_repository")
    return path.absolute()


def _at(part: GatewaySettings | WorkerSettings, broker_url: str) -> Any:
    """A part's broker settings, for our own broker."""
    return part.broker.model_copy(update={"servers": [broker_url]})


def _connectable(host: str) -> str:
    return {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}.get(host, host)  # noqa: S104 - compared, not bound
