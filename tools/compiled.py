"""Build the compiled form into build/compiled, unless it is there and of these sources. Needs a C compiler and mypy.

python tools/compiled.py        then: PYTHONSAFEPATH=1 PYTHONPATH=build/compiled headrace …
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("contract", "transport", "gateway", "workers", "headrace")
TARGET = ROOT / "build" / "compiled"
STAMP = TARGET / ".sources"


def main() -> int:
    """Build it if it is not there or its sources have changed."""
    wanted = _fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    started_s = time.monotonic()
    shutil.rmtree(TARGET, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--target", str(TARGET), str(ROOT)]
    done = subprocess.run(command, env=os.environ | {"HEADRACE_COMPILE": "1"}, cwd=ROOT, check=False)
    if done.returncode:
        print("compiled: pip could not build it; is there a C compiler with Python's headers?", file=sys.stderr)
        return done.returncode
    STAMP.write_text(wanted)
    print(f"compiled: build/compiled is ready in {time.monotonic() - started_s:.0f} s")
    return 0


def _fingerprint() -> str:
    """Of everything that the build reads."""
    digest = hashlib.sha256(sys.version.encode())
    files = [ROOT / "setup.py", ROOT / "pyproject.toml"]
    files += sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.*") if path.suffix != ".pyc")
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
