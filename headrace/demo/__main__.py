"""`python -m headrace.demo [REPO]`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from headrace.extras import complaint


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    wrong = complaint("gateway", "worker", "demo")
    if wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    from headrace.demo.run import run

    return asyncio.run(run(Path(arguments[0]) if arguments else Path("model_repository")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
