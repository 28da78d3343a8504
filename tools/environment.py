"""Make a virtual environment equal to a lock file; does nothing where it already is. Standard library only.

Does not resolve: a lock names every package with its version, so pip installs it without looking at dependencies.

    python tools/environment.py FOLDER LOCK [--editable]

`requirements/dev.lock` contains all of `requirements/runtime.lock`: an environment that has the first has the second.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOWEST_PYTHON = (3, 11)
RECORD = ".installed.json"
WIDER_LOCKS = {"runtime.lock": "dev.lock"}
LARGE_MB = 5.0

DOWNLOAD = re.compile(r"Downloading (\S+) \(([\d.]+) ([kMG]B)\)")
MISSING = re.compile(r"No matching distribution found for (\S+)")
MB_PER = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


class EnvironmentFailure(Exception):
    """The environment could not be made; the text says what is missing and what to do."""


def main() -> int:
    """Bring the environment up to date and say what was done."""
    parser = argparse.ArgumentParser(description="Make a virtual environment equal to a lock file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--editable", action="store_true", help="install this checkout too")
    arguments = parser.parse_args()
    try:
        _check_python()
        with _one_at_a_time(arguments.folder):
            _bring_up_to_date(arguments.folder, arguments.lock, is_editable=arguments.editable)
    except EnvironmentFailure as failure:
        print(f"environment: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _check_python() -> None:
    if sys.version_info < LOWEST_PYTHON:
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise EnvironmentFailure(
            f"Python 3.11 or later is needed, {sys.executable} is {found}; try make PYTHON=python3.12"
        )


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bring_up_to_date(folder: Path, lock: Path, *, is_editable: bool) -> None:
    is_usable = _is_usable(folder)
    installed = _recorded(folder) if is_usable else {}
    wanted = _digest(lock, is_editable=is_editable)
    wider = WIDER_LOCKS.get(lock.name)
    if installed.get(lock.name) == wanted:
        return
    if wider and installed.get(wider) == _digest(lock.with_name(wider), is_editable=is_editable):
        return
    start_s = time.monotonic()
    if not is_usable:
        _create(folder)
    print(f"environment: {folder}: installing {lock}", flush=True)
    downloaded_mb = _pip(folder, "--no-deps", "--requirement", str(lock))
    if is_editable:
        _pip(folder, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    (folder / RECORD).write_text(json.dumps({**installed, lock.name: wanted}), encoding="utf-8")
    took_s = time.monotonic() - start_s
    print(f"environment: {folder}: ready in {took_s:.1f} s, {downloaded_mb:.0f} MB downloaded", flush=True)


def _digest(lock: Path, *, is_editable: bool) -> str:
    """Digest of what decides the environment's content; of pyproject.toml only what an installation reads."""
    digest = hashlib.sha256(f"{sys.version_info.major}.{sys.version_info.minor}".encode())
    digest.update(lock.read_bytes())
    if is_editable:
        import tomllib  # here, because an older Python must get as far as being told that it is too old

        pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        read = [pyproject["build-system"], pyproject["project"], pyproject["tool"]["setuptools"]]
        digest.update(json.dumps(read).encode())
    return digest.hexdigest()


def _is_usable(folder: Path) -> bool:
    """Whether the folder is an environment of this Python version that was made where it lies."""
    ask = "import sys; print(sys.prefix, *sys.version_info[:2], sep='\\n')"
    try:
        answer = subprocess.run([folder / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    prefix, *version = answer.stdout.split("\n")[:3]
    return Path(prefix).resolve() == folder.resolve() and tuple(map(int, version)) == sys.version_info[:2]


def _recorded(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _create(folder: Path) -> None:
    command = [sys.executable, "-m", "venv", "--clear", str(folder)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode:
        raise EnvironmentFailure(f"Python could not make {folder}:\n{made.stdout.strip()}")


def _pip(folder: Path, *arguments: str) -> float:
    """Run `pip install`, show the large downloads as they begin, return the megabytes downloaded."""
    # Few retries: without a network pip would wait for minutes. Bytecode is made at first import, only where needed.
    options = ["--disable-pip-version-check", "--no-input", "--retries", "2", "--no-compile", "--progress-bar", "off"]
    command = [folder / "bin" / "python", "-m", "pip", "install", *options, *arguments]
    lines: list[str] = []
    downloaded_mb = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line.strip())
            if found := DOWNLOAD.search(line):
                size_mb = float(found[2]) * MB_PER[found[3]]
                downloaded_mb += size_mb
                if size_mb >= LARGE_MB:
                    print(f"environment: downloading {found[1].partition('-')[0]}, {size_mb:.0f} MB", flush=True)
    if pip.returncode:
        raise EnvironmentFailure(_explained(lines))
    return downloaded_mb


def _explained(lines: list[str]) -> str:
    """Say in one line what could not be had, then what pip said."""
    text = "\n".join(lines)
    told = "\n".join(line for line in lines if line.startswith("ERROR")) or "\n".join(lines[-20:])
    if "No space left on device" in text:
        return f"the disk is full\n{told}"
    missing = MISSING.search(text)
    if missing and "Retrying" in text:
        return f"package {missing[1]} is missing and the package index does not answer: is there a network?\n{told}"
    if missing:
        return f"package {missing[1]} is missing: the package index does not have it for this Python\n{told}"
    return f"pip failed\n{told}"


if __name__ == "__main__":
    sys.exit(main())
