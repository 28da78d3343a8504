"""The embedding examples run as they are, against a real gateway and worker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import cluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("examples")) as place:
        gateway = place.start_gateway()
        place.start_pool(["minilm"], repository=ROOT / "model_repository")
        place.wait_ready(gateway, "minilm")
        yield f"http://127.0.0.1:{gateway.http_port}"


def run(*command: str) -> str:
    printed = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert printed.returncode == 0, printed.stdout + printed.stderr
    return printed.stdout


def tells_the_river(printed: str) -> None:
    river, bread, tokens = printed.splitlines()
    assert river.endswith("Rivers carry water to the sea.")
    assert bread.endswith("Bread is baked in an oven.")
    assert float(river.split()[0]) > float(bread.split()[0]) + 0.3
    assert tokens == "26 tokens"


def test_the_python_client_tells_the_river_from_the_bread(url: str) -> None:
    tells_the_river(run(sys.executable, str(EXAMPLES / "embeddings.py"), url))


def test_the_node_client_tells_the_river_from_the_bread(url: str) -> None:
    if shutil.which("node") is None or not (EXAMPLES / "node_modules" / "openai").is_dir():
        pytest.skip("npm install --prefix examples has not run")
    tells_the_river(run("node", str(EXAMPLES / "embeddings.mjs"), url))


def test_curl_shows_all_three_routes(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    embeddings, ranked, scored = map(json.loads, run("sh", str(EXAMPLES / "embeddings.sh"), url).splitlines())
    assert [len(item["embedding"]) for item in embeddings["data"]] == [8, 8]
    assert [result["document"]["text"] for result in ranked["results"]] == ["Rivers carry water to the sea."]
    near, far = (item["score"] for item in scored["data"])
    assert near > far
