"""docs/operations.md: its codes, keys, metrics, figures and files exist, and its backup is one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from contract import envelope
from contract.errors import all_errors
from headrace.broker import reserved_bytes
from headrace.cli import app
from headrace.config.settings import HeadraceSettings
from tests.support.broker import Broker
from transport.connection import connect
from transport.settings import BrokerSettings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL))


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_every_error_has_its_row_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", section("Troubleshooting"), re.MULTILINE)
    assert envelope.BadEnvelope.code in rows
    assert sorted(rows) == sorted({e.code for e in all_errors()})


def test_the_settings_that_it_names_exist() -> None:
    defaults = HeadraceSettings()
    keys = [c for c in CODE if re.fullmatch(r"(gateway|worker|broker|up)\.\w+", c)]
    assert len(keys) > 10
    for part, _, key in (k.partition(".") for k in keys):
        settings = BrokerSettings() if part == "broker" else getattr(defaults, part)
        assert hasattr(settings, key), f"{part}.{key}"


def test_the_defaults_that_it_tells_are_the_defaults() -> None:
    defaults = HeadraceSettings()
    assert f"`gateway.drain_timeout_s`, {defaults.gateway.drain_timeout_s:.0f} s" in PAGE
    assert f"`worker.drain_timeout_s`, {defaults.worker.drain_timeout_s:.0f} s" in PAGE
    assert f"`gateway.max_held_bytes` ({defaults.gateway.max_held_bytes // 2**30} GiB)" in PAGE
    assert f"reserve {reserved_bytes(BrokerSettings()) // 2**20} MiB" in PAGE


def test_the_metrics_that_it_names_are_explained() -> None:
    explained = (ROOT / "docs/metrics.md").read_text()
    names = [c for c in CODE if re.fullmatch(r"(headrace|nv)_\w+", c)]
    assert len(names) > 10
    assert [n for n in names if f"`{n}`" not in explained] == []


def test_the_figures_are_those_that_were_measured() -> None:
    measured = (ROOT / "docs/performance.md").read_text()
    figures = re.findall(r"\| (?:\w[\w ]+, )?([\d,]+) (µs|req/s)", section("Sizing"))
    figures += re.findall(r"([\d,]+) (µs)", section("Sizing"))
    assert len(figures) >= 3
    for number, unit in figures:
        assert re.search(rf"\b{number}\b", measured), f"{number} {unit} is not in performance.md: measured anew?"


def test_the_commands_that_it_names_exist() -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    named = {c.split()[1] for c in CODE if c.startswith("headrace ")}
    assert named
    assert named <= commands | {"config"}


def test_the_tests_that_it_names_exist() -> None:
    for name in re.findall(r"tests/[\w/]+\.py", PAGE):
        assert (ROOT / name).exists(), name


async def test_what_was_backed_up_is_there_after_a_restore(tmp_path: Path) -> None:
    folder = tmp_path / ".headrace"
    (folder / "nats").mkdir(parents=True)
    broker = Broker(folder)
    broker._config = broker._config.replace(f'"{folder}/js"', f'"{folder}/nats"')

    async def ask(subject: str, body: str = "") -> str:
        transport = await connect(broker.settings, name="backup-test")
        try:
            return (await transport.request(subject, body.encode(), 5)).decode()
        finally:
            await transport.close()

    def shell(script: str) -> None:
        subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, timeout=60)

    await broker.start()
    try:
        await ask("$JS.API.STREAM.CREATE.kept", '{"name": "kept", "subjects": ["kept.>"], "storage": "file"}')
        assert '"seq":1' in (await ask("kept.1", "precious")).replace(" ", "")
        broker.kill()
        shell(block("backup"))
        shell("rm -rf .headrace/nats")
        await broker.start()
        assert "stream not found" in await ask("$JS.API.STREAM.INFO.kept")
        broker.kill()
        shell(block("restore"))
        await broker.start()
        assert '"messages":1' in (await ask("$JS.API.STREAM.INFO.kept")).replace(" ", "")
    finally:
        broker.kill()


@pytest.mark.parametrize("route", re.findall(r"`GET (/v2/[\w/]+)`", PAGE))
def test_the_routes_exist(route: str) -> None:
    table = (ROOT / "docs/http.md").read_text()
    assert route.replace("MODEL", "{model}") in table
