"""schemathesis against a real gateway and worker: our own `/openapi.json`, and the Open Inference Protocol's REST part.

It sends what a description allows and what it forbids, and holds every answer against it.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases.conftest import Server
from tests.support.cluster import known_good
from tests.support.cluster_http import HOST, ask

OIP = Path(__file__).parents[1] / "data/oip_rest.yaml"
MODELS = ["ident_f32", "ident_bytes", "labelled", "nobody"]
TEXT_MODEL = "embed8"
RUN_S = 15
"""Of sending; the process takes a few seconds more to begin and end."""
CONFIG = """\
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", "501", "503"]  # an extension that is not here, a model that is not ready

[[operations]]
# Whether a body fits depends on the model, a load on the repository, a pair on its two lists: no schema says it.
include-path-regex = "(infer|load|unload|score|embeddings)$"
checks.positive_data_acceptance.enabled = false

[[operations]]
# These read headers: one that is not described is no error in HTTP, and a header length of 0 is told to be wrong here
# only to keep most requests JSON.
include-path-regex = "(infer|score|rerank|embeddings)$"
checks.negative_data_rejection.enabled = false
"""

pytestmark = pytest.mark.slow


async def run(folder: Path, server: Server, document: Any) -> str:
    """Its report; the test fails with it where anything is not as described."""
    (folder / "schemathesis.toml").write_text(CONFIG)
    (folder / "document.json").write_text(json.dumps(document))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", "document.json", "--url", f"http://{HOST}:{server.port}"),
        *("--max-time", str(RUN_S), "--max-examples", "25", "--seed", "1", "--continue-on-failure", "--no-color"),
        *("--generation-database", "none", "--no-shrink", "--request-timeout", "15", "--warnings", "off"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_S * 4):
            report = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "\n".join(line[:1000] for line in report.splitlines())
    return report


def num_tested(report: str) -> int:
    found = re.search(r"Tested: (\d+)", report)
    assert found, report
    return int(found[1])


def within_reach(document: dict[str, Any]) -> dict[str, Any]:
    """The same with names and numbers that let most requests get to a model."""
    found = copy.deepcopy(document)
    found["components"]["parameters"]["model"]["schema"] = {"enum": MODELS}
    found["components"]["parameters"]["version"]["schema"] = {"enum": ["1", "7", "x"]}
    for name, least in (("TimeoutMs", 20_000), ("InferenceHeaderLength", 1)):  # no 504 by wish; JSON is read as JSON
        if name in found["components"]["parameters"]:
            found["components"]["parameters"][name]["schema"]["minimum"] = least
    for schema in found["components"]["schemas"].values():
        if "model" in schema.get("required", ()) and "object" not in schema["properties"]:
            schema["properties"]["model"] = {"enum": [TEXT_MODEL, "nobody"]}
    return found


async def test_every_route_does_what_our_own_description_says(server: Server, tmp_path: Path) -> None:
    document = (await ask(server.port, "GET", "/openapi.json")).json
    report = await run(tmp_path, server, within_reach(document))
    assert num_tested(report) == sum(len(set(item) - {"parameters"}) for item in document["paths"].values())
    await known_good(server.gateway)


async def test_the_open_inference_protocol_is_spoken_as_it_is_written(server: Server, tmp_path: Path) -> None:
    document = inlined(yaml.safe_load(OIP.read_text()))
    report = await run(tmp_path, server, within_reach(document))
    assert num_tested(report) == len(document["paths"])
    await known_good(server.gateway)


def inlined(document: dict[str, Any]) -> dict[str, Any]:
    """Operations can't be references in OpenAPI; ours are only to save lines."""
    operations = document["components"].pop("x-operations")
    for item in document["paths"].values():
        for method in ("get", "post"):
            if "$ref" in item.get(method, {}):
                item[method] = operations[item[method]["$ref"].rpartition("/")[2]]
    return document
