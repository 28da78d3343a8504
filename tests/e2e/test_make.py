"""What make does on a fresh machine, where things are missing: it says what, in a line that helps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import environment

ROOT = Path(__file__).parents[2]
DEAD_INDEX = "http://127.0.0.1:9/simple"  # port 9, discard: nobody listens


def make_environment(folder: Path, lock: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    command = [sys.executable, ROOT / "tools" / "environment.py", folder, lock]
    return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=100, check=False)


def test_make_alone_lists_every_command_with_one_line_each() -> None:
    told = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = told.stdout.splitlines()
    listed = {line.split()[1] for line in lines}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert listed == targets
    assert all(re.fullmatch(r"  make [a-z-]+ +\S.{5,70}", line) for line in lines)


def test_without_a_network_the_missing_package_is_named_and_nothing_counts_as_done(tmp_path: Path) -> None:
    lock = tmp_path / "one.lock"
    lock.write_text("headrace-not-there==1.2.3\n")
    made = make_environment(tmp_path / "venv", lock, PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL=DEAD_INDEX)
    assert made.returncode == 1
    first, *_ = made.stderr.splitlines()
    assert first == (
        "environment: package headrace-not-there==1.2.3 is missing and the package index does not answer:"
        " is there a network?"
    )
    assert not (tmp_path / "venv" / environment.RECORD).exists(), "half made must not look like made"


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    version = type("Version", (tuple,), {"major": 3, "minor": 9})((3, 9, 2))
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(environment.EnvironmentFailure, match=r"Python 3\.11 or later is needed, .* is 3\.9"):
        environment._check_python()


def test_a_full_disk_is_told_so() -> None:
    lines = ["Collecting x", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]
    assert environment._explained(lines).startswith("the disk is full\nERROR: Could not install")


def test_every_package_of_the_runtime_lock_is_in_the_dev_lock_with_the_same_version() -> None:
    def pinned(name: str) -> set[str]:
        lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
        return {line.split("#")[0].strip() for line in lines if "==" in line}

    assert pinned("runtime.lock") <= pinned("dev.lock")
    assert len(pinned("runtime.lock")) > 30


@pytest.mark.parametrize("name", ["runtime.lock", "dev.lock", "models.lock"])
def test_a_lock_names_versions_and_no_place(name: str) -> None:
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        assert line.startswith(("#", " ")) or re.match(r"[a-z0-9-]+==[\w.]+( ;.*)?( *#.*)?$", line), line
        assert "://" not in line
        assert not line.lstrip().startswith("-")
