"""Each example runs as its first lines say, and tells what its page says it tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY, Running, headrace_up

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TESTED_ELSEWHERE = re.compile(r"embeddings\.|ask_\w+\.py|package(-lock)?\.json|README\.md|node_modules")

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("examples")
    with headrace_up(folder, REPOSITORY, "--set", "worker.models=toxicity,sentiment") as launched:
        yield launched


def run(*command: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_every_example_is_in_the_readme_and_has_a_test() -> None:
    tests = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in {"README.md", "node_modules", "package.json", "package-lock.json"}:
            assert f"`{path.name}`" in listed, path.name
        if not TESTED_ELSEWHERE.match(path.name):
            assert f"examples/{path.name}" in tests, path.name


def test_curl(running: Running) -> None:
    told = run("sh", "examples/ask.sh", running.http_url)
    assert told.returncode == 0, told.stderr
    toxicity, sentiment = map(json.loads, told.stdout.splitlines())
    assert toxicity["outputs"][0]["data"] == [0, 1]
    assert [row.rpartition(":")[2] for row in sentiment["outputs"][0]["data"]] == ["positive", "negative"]


def test_curl_where_nobody_listens_fails() -> None:
    assert run("sh", "examples/ask.sh", "http://127.0.0.1:1").returncode != 0


def test_node(running: Running) -> None:
    told = run("node", "examples/ask.mjs", running.http_url)
    assert told.returncode == 0, told.stderr
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["fine", "toxic"]


def test_node_tells_a_refusal_by_its_code(running: Running, tmp_path: Path) -> None:
    wrong = tmp_path / "ask.mjs"
    wrong.write_text((EXAMPLES / "ask.mjs").read_text().replace('name: "text"', 'name: "txt"'))
    told = run("node", str(wrong), running.http_url)
    assert told.returncode == 1
    assert told.stderr.startswith("400 invalid-input: ")


def test_a_health_client_tells_each_version(running: Running) -> None:
    address = running.http_url.removeprefix("http://")
    told = run(sys.executable, "examples/health.py", address, "--times", "2", "--every", "0.1")
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == ["live, ready, sentiment/1 ready, sentiment/2 ready, toxicity/1 ready"] * 2


def test_a_health_client_goes_on_where_nobody_answers() -> None:
    told = run(sys.executable, "examples/health.py", "127.0.0.1:1", "--times", "2", "--every", "0.1")
    assert told.returncode == 0, told.stderr
    assert [line.partition(":")[0] for line in told.stdout.splitlines()] == ["no answer"] * 2


def test_load_counts_rows_and_executions(running: Running) -> None:
    told = run(sys.executable, "examples/load.py", "sentiment", running.http_url, "--requests", "60", "--callers", "6")
    assert told.returncode == 0, told.stderr
    assert re.match(r"6 callers: 60 rows in \d+ executions, \d+\.\d rows each, ", told.stdout)
