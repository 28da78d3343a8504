"""Resolve requirements/*.lock anew from pyproject.toml, for every Python from 3.11 on. Installs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = [
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--upgrade"),
    *("--no-emit-index-url", "--no-emit-find-links", "--annotation-style", "line"),
    *("--custom-compile-command", "make lock"),
]
# One version of a package in all three: what tests and the models' check ran is what the demo runs.
LIKE_RUNTIME = ("--constraint", "requirements/runtime.lock")
LOCKS = {
    "runtime": ("pyproject.toml", "--extra", "demo", "--group", "build"),
    "dev": ("pyproject.toml", "--extra", "demo", "--group", "dev", *LIKE_RUNTIME),
    "models": ("--group", "models", "--excludes", "requirements/models.exclude", *LIKE_RUNTIME),
}


def main() -> None:
    """Write the locks, the one that binds the others first."""
    uv = Path(sys.executable).with_name("uv")
    for name, options in LOCKS.items():
        output = f"requirements/{name}.lock"
        subprocess.run([uv, *COMPILE, *options, "--output-file", output], cwd=ROOT, check=True)
        print(f"lock: {output}")


if __name__ == "__main__":
    main()
