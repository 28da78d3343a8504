"""The wheel, installed alone into an empty environment beside tritonclient: what a stranger gets from PyPI."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"contract", "transport", "gateway", "workers", "headrace"}
READY_WITHIN_S = 90.0
FORBIDDEN_IN_WHEEL = ("tests/", "bench/", "tools/", "model_repository/", "examples/")
ASK = """
import sys
import numpy as np
import tritonclient.http as http
a, b = np.full((1, 16), 2, np.float32), np.ones((1, 16), np.float32)
client = http.InferenceServerClient(sys.argv[1])
inputs = []
for name, value in (("INPUT0", a), ("INPUT1", b)):
    inputs.append(http.InferInput(name, value.shape, "FP32"))
    inputs[-1].set_data_from_numpy(value)
answer = client.infer("add_sub", inputs)
print(answer.as_numpy("OUTPUT0")[0, 0], answer.as_numpy("OUTPUT1")[0, 0])
client.close()
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(*command: str | Path, cwd: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "PYTHON"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that no build folder is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in (*PACKAGES, "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out)
    built = run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=out)
    assert built.returncode == 0, built.stderr
    (wheel,) = out.glob("headrace-*-py3-none-any.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, its extra `local` and tritonclient, and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    made = run(sys.executable, "-m", "venv", folder, cwd=folder)
    assert made.returncode == 0, made.stdout + made.stderr
    versions = ("--constraint", ROOT / "requirements" / "dev.lock")
    asked = (f"headrace[local] @ {wheel.as_uri()}", "tritonclient[http]")
    installed = run(folder / "bin" / "pip", "install", "--quiet", "--no-compile", *versions, *asked, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder that is not the checkout, with a model repository of one model."""
    source = ROOT / "tests" / "models" / "add_sub"
    shutil.copytree(source, tmp_path / "repository" / "add_sub")
    return tmp_path


def owners(environment: Path) -> dict[str, list[str]]:
    """Installed file to the distributions whose RECORD claims it."""
    (site_packages,) = environment.glob("lib/python*/site-packages")
    claims: dict[str, list[str]] = {}
    for record in site_packages.glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                claims.setdefault(os.path.normpath(row[0]), []).append(record.parent.name)
    return claims


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    assert not [name for name in names if name.startswith(FORBIDDEN_IN_WHEEL)]
    for needed in [f"{package}/py.typed" for package in sorted(PACKAGES)]:
        assert needed in names
    for licence in ("LICENSE", "NOTICE"):
        assert [name for name in names if name.endswith(f".dist-info/licenses/{licence}")]


def test_the_wheel_offers_one_command(environment: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert archive.read(entry_points).decode().split() == ["[console_scripts]", "headrace", "=", "headrace.cli:app"]
    assert (environment / "bin" / "headrace").exists()


def test_it_overwrites_no_file_of_another_distribution(environment: Path) -> None:
    claims = owners(environment)
    ours = {path: who for path, who in claims.items() if any(name.startswith("headrace-") for name in who)}
    assert len(ours) > 50
    assert {path: who for path, who in ours.items() if len(who) > 1} == {}


def test_the_installed_packages_agree_with_each_other(environment: Path) -> None:
    checked = run(environment / "bin" / "pip", "check", cwd=environment)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("first", sorted(PACKAGES))
def test_every_package_imports_beside_tritonclient_in_either_order(
    environment: Path, first: str, tmp_path: Path
) -> None:
    python = environment / "bin" / "python"
    for order in (f"import {first}, tritonclient.grpc", f"import tritonclient.grpc, {first}"):
        imported = run(python, "-W", "error::SyntaxWarning", "-c", order, cwd=tmp_path)
        assert imported.returncode == 0, imported.stderr


def test_version_and_doctor_run_from_another_folder(environment: Path, elsewhere: Path) -> None:
    headrace = environment / "bin" / "headrace"
    version = run(headrace, "version", cwd=elsewhere)
    assert (version.returncode, version.stdout) == (0, "headrace 0.1.0\n"), version.stderr
    doctor = run(headrace, "doctor", "repository", cwd=elsewhere)
    # Its code tells of this machine (a taken port, a full disk); that it looked at all of it is what counts here.
    assert doctor.returncode in {0, 1}, doctor.stderr
    assert "Traceback" not in doctor.stderr
    assert "add_sub" in doctor.stdout or "repository" in doctor.stdout


def test_up_serves_a_triton_client_from_another_folder_and_stops_cleanly(environment: Path, elsewhere: Path) -> None:
    with serving(environment, elsewhere) as (process, url):
        asked = run(environment / "bin" / "python", "-c", ASK, url.removeprefix("http://"), cwd=elsewhere)
        assert (asked.returncode, asked.stdout) == (0, "3.0 1.0\n"), asked.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not (elsewhere / "data" / "run.json").exists()


@contextlib.contextmanager
def serving(environment: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`headrace up` of the installed wheel: its process and its URL."""
    command = [environment / "bin" / "headrace", "up", "repository", "--data-dir", "data"]
    command += ["--http-port", "0", "--metrics-port", "0", "--broker-port", "0"]
    note, log = folder / "data" / "run.json", folder / "up.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        end_s = time.monotonic() + READY_WITHIN_S
        while not note.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.05)
        yield process, json.loads(note.read_text())["http_url"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
