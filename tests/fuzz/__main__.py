"""`python -m tests.fuzz TARGET [libFuzzer options] [corpus folders]`: fuzz one target until it fails, or to -runs=N."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["gateway", "workers", "contract"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Never returns: libFuzzer ends the process, with status 0 where nothing was found."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(TARGETS)} [-runs=N] [-max_total_time=S] [corpus …]")
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


main()
