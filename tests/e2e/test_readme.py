"""Every command of the README is run here, and what it prints is what the README shows."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace import up
from headrace.launcher import Running as Ports
from tests.support.running import FIXTURES, REPOSITORY, Running, headrace_up

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_SCREEN_LINES = 30
NUMBER = re.compile(r"\d+(?:\.\d+)?")
PORTS = Ports("http://127.0.0.1:8000", "http://127.0.0.1:8002/metrics", "nats://127.0.0.1:4222", ("toxicity",), ())


class Example(NamedTuple):
    command: str
    shown: tuple[str, ...]


def examples() -> list[Example]:
    """Every `$ command` of a console block, with the lines shown below it."""
    found: list[Example] = []
    for block in re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            found.append(Example(command.split("  #")[0].strip(), tuple(shown)))
    return found


STARTERS = {"make demo", ".venv/bin/headrace up my_models --workers 2"}
ASKED = [e for e in examples() if e.command not in STARTERS and "my_models" not in e.command]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """What `make up` starts, on free ports."""
    with headrace_up(tmp_path_factory.mktemp("readme"), REPOSITORY) as launched:
        yield launched


def shell(command: str, running: Running | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run as typed, but for the ports and the place of the environment."""
    environment = dict(os.environ)
    if running is not None:
        environment["HEADRACE_UP__DATA_DIR"] = str(running.data_dir)
        for written, real in (
            ("http://127.0.0.1:8000", running.http_url),
            ("http://127.0.0.1:8002/metrics", running.note.metrics_url),
            ("nats://127.0.0.1:4222", running.broker_url),
        ):
            command = command.replace(written, real)
    command = command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def numbers(text: str) -> list[float]:
    return [float(n) for n in NUMBER.findall(text)]


def recipe(target: str) -> str:
    """What `make target` runs once environment and models are there."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}  # of a `make test`
    command = ["make", "-n", "--no-print-directory", target]
    lines = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=True)
    return lines.stdout.splitlines()[-1].strip()


def test_the_first_screen_has_the_story_and_three_requests_with_their_answers() -> None:
    first = README.splitlines()[:FIRST_SCREEN_LINES]
    shown = [line for line in first if line.startswith("$ ")]
    assert [line.split()[1] for line in shown] == ["make", "curl", ".venv/bin/python", ".venv/bin/headrace"]
    assert "`make up`" in "\n".join(first)
    assert first.index("demo: ok") < first.index(shown[1])
    assert any("downloads about 200 MB" in line for line in first), "why the first `make demo` takes minutes"
    assert any(line.startswith("score") for line in first), "the last answer is still on the first screen"


def test_the_three_requests_are_those_that_up_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "program", lambda name: f".venv/bin/{name}")
    written = {e.command for e in examples()}
    assert set(up.commands(PORTS)) <= written


def test_make_demo_prints_what_the_readme_shows() -> None:
    assert recipe("demo").split() == [".venv/bin/python", "-m", "headrace.demo"]
    (shown,) = [e.shown for e in examples() if e.command == "make demo"]
    printed = shell(recipe("demo"))
    assert printed.returncode == 0, printed.stdout + printed.stderr
    lines = iter([NUMBER.sub("N", line).split() for line in printed.stdout.splitlines()])
    for line in shown:
        if line != "...":
            assert NUMBER.sub("N", line).split() in lines, f"{line!r} is missing or out of order"


def test_make_up_serves_the_model_repository() -> None:
    assert recipe("up").split() == [".venv/bin/headrace", "up", "model_repository"]


@pytest.mark.parametrize("example", ASKED, ids=lambda e: e.command[:40])
def test_a_command_beside_make_up_prints_what_the_readme_shows(example: Example, running: Running) -> None:
    program = example.command.split()[0]
    if program == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    printed = shell(example.command, running)
    assert printed.returncode == 0, printed.stdout + printed.stderr
    assert printed.stdout.strip()
    if example.shown:
        text, shown = printed.stdout.rstrip("\n"), "\n".join(example.shown)
        assert NUMBER.sub("N", text) == NUMBER.sub("N", shown)
        assert numbers(text) == pytest.approx(numbers(shown), abs=1e-4), "another processor rounds otherwise"


def test_a_repository_of_ones_own_is_checked_and_served(tmp_path: Path) -> None:
    model = tmp_path / "my_models" / "classifier"
    shutil.copytree(FIXTURES / "add_sub", model)
    config = (model / "config.pbtxt").read_text().replace('name: "add_sub"', 'name: "classifier"')
    (model / "config.pbtxt").write_text(config)
    commands = [e.command for e in examples() if "my_models" in e.command]
    assert commands == [".venv/bin/headrace doctor my_models", ".venv/bin/headrace up my_models --workers 2"]
    checked = shell(commands[0] + " --set broker.servers=nats://127.0.0.1:1", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert "classifier, version 1" in checked.stdout
    with headrace_up(tmp_path, Path("my_models"), "--workers", "2") as own:
        assert len(own.workers()) == 2
        with own.client() as client:
            assert client.is_ready("classifier")


@pytest.mark.parametrize("name", ["ask_http.py", "ask_triton.py", "ask_nats.py"])
def test_an_example_tells_nice_from_nasty(name: str, running: Running) -> None:
    address = running.broker_url if "nats" in name else running.http_url
    if "triton" in name:
        address = address.removeprefix("http://")
    printed = shell(f".venv/bin/python examples/{name} {address}")
    assert printed.returncode == 0, printed.stderr
    assert [line.split()[0] for line in printed.stdout.splitlines()] == ["fine", "toxic"]


def test_every_command_shown_is_run_by_a_test() -> None:
    assert len(ASKED) + len(STARTERS) + 1 == len(examples())
    assert all(shell(f"command -v {e.command.split()[0]}").returncode == 0 for e in ASKED)
