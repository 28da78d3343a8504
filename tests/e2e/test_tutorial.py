"""Every command of docs/tutorial.md is run here in its order, and what it prints is what the page shows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.running import REPOSITORY, Running, headrace_up

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
START = ".venv/bin/headrace up my_models"

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")]


class Step(NamedTuple):
    command: str
    shown: tuple[str, ...]


def steps() -> list[Step]:
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            found.append(Step(command, tuple(shown)))
    return found


STEPS = steps()
AT = next(i for i, step in enumerate(STEPS) if step.command.startswith(START))


def run(step: Step, folder: Path, running: Running | None) -> str:
    """As typed, but for ports, the place of the environment and of the launcher's folder."""
    command = step.command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    if running is not None:
        command = command.replace("http://127.0.0.1:8000", running.http_url)
        command = command.replace(".headrace/logs", str(running.data_dir / "logs"))
        if "load.py" in command:
            command = command.replace("sentiment", f"sentiment {running.http_url}")
        if "health.py" in command:
            command = command.replace("health.py", f"health.py {running.http_url.removeprefix('http://')}")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{step.command}\n{done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Step, str]]]:
    """What each step printed, in the page's order."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "model_repository").symlink_to(REPOSITORY)
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = [(step, run(step, folder, None)) for step in STEPS[1:AT]]
    arguments = shlex.split(STEPS[AT].command)[3:]
    with headrace_up(folder, Path("my_models"), *arguments) as running:
        yield lines + [(step, run(step, folder, running)) for step in STEPS[AT + 1 :]]


def test_the_page_has_the_five_exercises() -> None:
    titles = re.findall(r"^## (\d)\. ", PAGE, re.MULTILINE)
    assert titles == ["1", "2", "3", "4", "5"]
    assert len(STEPS) > 20


def test_it_begins_with_a_command_of_make() -> None:
    assert STEPS[0] == Step("make models", ())
    assert re.search(r"^models:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_command_prints_what_the_page_shows(printed: list[tuple[Step, str]]) -> None:
    for step, text in printed:
        shown = "\n".join(step.shown)
        if "http_code" in step.command:
            assert text == shown
        assert NUMBER.sub("N", text) == NUMBER.sub("N", shown), step.command


def test_rows_of_many_callers_share_executions_and_those_of_one_do_not(printed: list[tuple[Step, str]]) -> None:
    loads = {step.command: float(text.split(", ")[1].split()[0]) for step, text in printed if "load.py" in step.command}
    for command, rows_each in loads.items():
        assert rows_each == 1 if "--callers 1 " in command else rows_each > 2, command


def test_the_two_versions_answer_differently(printed: list[tuple[Step, str]]) -> None:
    labels = [
        text.split('"data":["')[1].split('"')[0] for _, text in printed if ":positive" in text or ":negative" in text
    ]
    assert [label.rpartition(":")[2] for label in labels] == ["positive", "negative"]


def test_the_third_version_answers_once_it_is_ready(printed: list[tuple[Step, str]]) -> None:
    answers = [text for step, text in printed if step.command.endswith("}]}'") and "/versions/" not in step.command]
    assert [re.findall(r'"model_version":"(\d)"', text) for text in answers] == [["2"], ["3"]]
