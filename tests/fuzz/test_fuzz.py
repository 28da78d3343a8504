"""A short run of each fuzz target with atheris, from the suite's own seeds. Longer: `python -m tests.fuzz TARGET`."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.targets import CARDS, TARGETS

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "data" / "config_pbtxt"
NUM_RUNS = 4_000
MAX_LEN = {"config_pbtxt": 2_000}


def seeds(target: str) -> Iterator[bytes]:
    if target == "config_pbtxt":
        for path in (*CONFIGS.glob("*.pbtxt"), *CONFIGS.glob("styles/*.pbtxt")):
            yield path.read_bytes()
        return
    bodies = list(_requests())
    if target == "compressed_body":
        for body in bodies:
            yield b"\0" + gzip.compress(body, mtime=0)
            yield b"\xff" + zlib.compress(body)
        return
    for number, _ in enumerate(CARDS):
        for body in bodies:
            yield bytes([number]) + b"\n" + body
            yield bytes([number]) + b"%d\n" % body.index(b"}]") + body
        yield bytes([number]) + b"0\nabcdefgh"


def _requests() -> Iterator[bytes]:
    for datatype, data in (("FP32", [1.5, 2]), ("BYTES", ["a", "ü"]), ("BOOL", [True, False]), ("INT64", [1, -2])):
        tensor = {"name": "IN", "shape": [2], "datatype": datatype, "data": data}
        outputs = [{"name": "OUT", "parameters": {"binary_data": True, "classification": 2}}]
        yield json.dumps({"id": "x", "inputs": [tensor], "outputs": outputs, "parameters": {"priority": 1}}).encode()
        tensor = {"name": "IN", "shape": [1, 2], "datatype": datatype, "parameters": {"binary_data_size": 8}}
        yield json.dumps({"inputs": [tensor]}).encode() + b"\1\0\0\0a\0\0\0"


@pytest.mark.parametrize("target", TARGETS)
def test_the_seeds_themselves_keep_the_invariants(target: str) -> None:
    for seed in seeds(target):
        TARGETS[target](seed)


@pytest.mark.timeout(180)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python")
@pytest.mark.parametrize("target", TARGETS)
def test_a_short_fuzz_run_finds_nothing(target: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(target)):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-runs={NUM_RUNS}", "-seed=7", "-timeout=10", f"-max_len={MAX_LEN.get(target, 600)}", "-verbosity=0"]
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", target, *options, f"-artifact_prefix={tmp_path}/", str(corpus)],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert found.returncode == 0, found.stderr[-3000:]
