"""`headrace doctor`: looks at this machine and says in a line each what is wrong and what to do. Changes nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.broker import NoBinary, find_binary, machine_memory_bytes, plan_memory, reserved_bytes
from headrace.config.given import ConfigError, Given
from headrace.config.load import load
from headrace.config.settings import HeadraceSettings
from headrace.extras import complaint
from headrace.ports import holder_of, is_free
from headrace.runfile import RunNote, read_note
from headrace.status import broker_of
from transport.base import NoResponders, TransportError
from transport.connection import connect

if TYPE_CHECKING:
    from workers.repository.scan import ModelEntry

OLDEST_PYTHON = (3, 11)
LOW_DISK_BYTES = 1024**3
MAX_CLOCK_OFFSET_S = 0.020
"""More than this moves deadlines noticeably: a request's deadline travels in the broker's time."""
NETWORK_WAIT_S = 3.0

State = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `note` is worth reading, `bad` stops something from working."""

    state: State
    what: str
    text: str


def diagnose(config: Path | None, sets: Sequence[str], repository: Path | None) -> list[Finding]:
    """Every finding, the good ones too."""
    findings = [python_finding(sys.version_info[:2]), *_package_findings()]
    flags = [Given(("worker", "model_repository"), str(repository), "REPO", is_text=True)] if repository else []
    try:
        settings = load(config, sets=sets, flags=flags).settings
    except ConfigError as e:
        return [*findings, *(Finding("bad", "config", str(p)) for p in e.problems)]
    findings.append(Finding("good", "config", "every value is allowed"))
    note = read_note(settings.up.data_dir)
    findings += [*_broker_binary(), *disk_findings(settings.up.data_dir), *_repository_findings(settings)]
    if note is None:
        findings += port_findings(settings)
    findings += asyncio.run(_broker_findings(settings, note))
    return findings


def print_findings(findings: Sequence[Finding]) -> int:
    """One line each; 1 if any is bad."""
    for f in findings:
        sys.stdout.write(f"{f.state:<4}  {f.what:<9}  {f.text}\n")
    return int(any(f.state == "bad" for f in findings))


def python_finding(version: tuple[int, int]) -> Finding:
    """Whether this Python will do."""
    running = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return Finding(
            "bad", "python", f"{running} is too old: install Python {oldest} or newer, then headrace with it"
        )
    return Finding("good", "python", running)


def _package_findings() -> list[Finding]:
    findings: list[Finding] = []
    for extra in ("gateway", "worker"):
        wrong = complaint(extra)
        findings.append(Finding("bad" if wrong else "good", extra, wrong or "every package is installed"))
    if any(f.state == "bad" for f in findings):
        findings.append(network_finding("pypi.org", 443))
    return findings


def network_finding(host: str, port: int) -> Finding:
    """Whether a package could be downloaded; asked only when one is missing."""
    try:
        socket.create_connection((host, port), timeout=NETWORK_WAIT_S).close()
    except OSError as e:
        text = f"{host} can't be reached ({e.strerror or e}): connect, or set pip's index or proxy to one that can be"
        return Finding("bad", "network", text)
    return Finding("good", "network", f"{host} can be reached")


def _broker_binary() -> list[Finding]:
    try:
        return [Finding("good", "broker", f"nats-server is {find_binary()}")]
    except NoBinary as e:
        return [Finding("bad", "broker", str(e))]


def disk_findings(folder: Path) -> list[Finding]:
    """Whether the broker's folder has room."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / 2**30:.1f} GiB free for {folder}"
    if free < LOW_DISK_BYTES:
        return [Finding("bad", "disk", f"{text}: make room, or set up.data_dir to another disk")]
    return [Finding("good", "disk", text)]


def port_findings(settings: HeadraceSettings) -> list[Finding]:
    """Which of the ports `headrace up` would take are taken, and by whom."""
    gateway, up = settings.gateway, settings.up
    wanted = (
        ("HTTP", gateway.host, gateway.http_port, "--http-port"),
        ("metrics", gateway.host, gateway.metrics_port, "--metrics-port"),
        ("nats", "127.0.0.1", up.broker_port, "--broker-port"),
    )
    findings: list[Finding] = []
    for what, host, port, flag in wanted:
        if port == 0 or is_free(host, port):
            findings.append(Finding("good", "port", f"{what} {port} is free"))
            continue
        by = holder_of(port) or "a process of another user"
        remedy = (
            f"stop it, or give another {flag}" if up.is_port_fixed else f"`headrace up` will use another; or {flag}"
        )
        state: State = "bad" if up.is_port_fixed else "note"
        findings.append(Finding(state, "port", f"{what} {port} is taken by {by}: {remedy}"))
    return findings


def _repository_findings(settings: HeadraceSettings) -> list[Finding]:
    path = settings.worker.model_repository
    if not path.is_dir():
        text = f"{path} does not exist: run `make models`, or name a repository: headrace doctor REPO"
        return [Finding("bad", "models", text)]
    try:
        from workers.repository.read import read_repository, repository_notes
        from workers.repository.refusal import ConfigRefused
    except ImportError:
        return []  # the missing package has its own line
    try:
        entries = read_repository(path, settings.worker.models)
    except ConfigRefused as e:
        return [Finding("bad", "models", str(e))]
    if not entries:
        return [Finding("bad", "models", f"{path} holds no model folder: run `make models`, or name a repository")]
    findings = [Finding("note", "models", note) for note in repository_notes(path)]
    for entry in entries:
        findings += [Finding("note", "model", f"{entry.name}: {note}") for note in entry.notes]
        reasons = [entry.reason] if entry.reason else [f"version {v.version}: {v.reason}" for v in entry.unavailable]
        if reasons and not entry.versions and not entry.reason:
            reasons.append("no version is left to serve")
        if entry.config is not None:
            problems = [*_backend_problems(entry.config.backend), *_tokenizer_problems(entry)]
            reasons += [f"{entry.name}/config.pbtxt: {why}" for why in problems]
        findings += [Finding("bad", "model", f"{entry.name}: {reason}") for reason in reasons]
        if not reasons:
            findings.append(Finding("good", "model", f"{entry.name}, version {', '.join(entry.versions)}"))
    return findings


def _backend_problems(backend: str) -> list[str]:
    """Why a backend could load nothing here; a worker would find out when it loads the model."""
    from workers.backends.base import LoadFailed
    from workers.backends.registry import find_backend

    try:
        find_backend(backend)
    except LoadFailed as e:
        return [str(e)]
    return []


def _tokenizer_problems(entry: ModelEntry) -> list[str]:
    """Why the texts of a version could not be tokenised here."""
    from workers.backends.base import LoadFailed
    from workers.text.load import find_file
    from workers.text.rules import text_rules

    rules = None if entry.config is None else text_rules(entry.config)
    if rules is None:
        return []
    problems = []
    for version in entry.versions:
        try:
            find_file(rules, entry.model_dir, version)
        except LoadFailed as e:
            problems.append(str(e))
    return problems


async def _broker_findings(settings: HeadraceSettings, note: RunNote | None) -> list[Finding]:
    """The broker that runs: reached, JetStream on, its memory against what streams reserve, its clock against ours."""
    broker = broker_of(settings)
    where = ", ".join(broker.servers)
    reserved = reserved_bytes(broker)
    try:
        transport = await connect(broker.model_copy(update={"connect_timeout_s": 2.0}), name="headrace-doctor")
    except (TransportError, OSError) as e:
        limit = plan_memory(settings.up.broker_max_memory_bytes, machine_memory_bytes(), reserved)
        text = f"{e or type(e).__name__}; `headrace up` starts one"
        return [Finding("note", "broker", text), memory_finding(limit, reserved, "`headrace up` would allow")]
    try:
        findings = [Finding("good", "broker", f"{where} answers")]
        answer = json.loads(await transport.request("$JS.API.INFO", b"", 2.0))
        offset_s = transport.clock.now_ms(time.monotonic()) / 1000 - time.time()
    except NoResponders:
        remedy = "start it with a `jetstream {}` section"
        return [*findings, Finding("bad", "broker", f"{where} has JetStream off: {remedy}")]
    except TransportError as e:
        return [Finding("bad", "broker", f"{where} does not answer: {e}")]
    finally:
        await transport.close()
    return [*findings, jetstream_finding(answer, note, reserved), clock_finding(offset_s)]


def jetstream_finding(answer: Mapping[str, Any], note: RunNote | None, reserved: int) -> Finding:
    """Memory streams' limit against what is reserved; `answer` is the broker's `$JS.API.INFO`."""
    if "error" in answer:
        return Finding("bad", "broker", f"JetStream: {answer['error'].get('description', answer['error'])}")
    taken = max(int(answer.get("reserved_memory", 0)), reserved)
    limit = int(answer.get("limits", {}).get("max_memory", -1))
    if limit <= 0 and note is not None:
        limit = note.broker_max_memory_bytes
    if limit <= 0:
        return Finding(
            "note", "memory", f"streams reserve {_mib(taken)}; the broker does not tell its max_memory_store"
        )
    return memory_finding(limit, taken, "the broker allows")


def memory_finding(limit: int, reserved: int, who: str) -> Finding:
    """Whether the streams' reservations fit."""
    text = f"streams reserve {_mib(reserved)}, {who} {_mib(limit)}"
    if reserved > limit:
        remedy = "raise max_memory_store (up.broker_max_memory_bytes) or lower broker.online_max_bytes, blob_max_bytes"
        return Finding("bad", "memory", f"{text}: {remedy}")
    return Finding("good", "memory", text)


def clock_finding(offset_s: float) -> Finding:
    """How far the broker's clock is from ours."""
    text = f"the broker's clock is {round(offset_s * 1000)} ms from this machine's"
    if abs(offset_s) > MAX_CLOCK_OFFSET_S:
        return Finding("bad", "clock", f"{text}: run a time service (chrony, systemd-timesyncd) on both")
    return Finding("good", "clock", text)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
