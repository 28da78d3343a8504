"""`python -m headrace.demo [REPO]`."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

NEEDED = {
    "httptools": "httptools",
    "onnxruntime": "onnxruntime",
    "orjson": "orjson",
    "prometheus_client": "prometheus-client",
    "psutil": "psutil",
    "starlette": "starlette",
    "tokenizers": "tokenizers",
    "tritonclient": "tritonclient[grpc]",
    "uvicorn": "uvicorn",
}
"""Module and package of all that the demo uses beyond headrace's own dependencies."""


def main(arguments: list[str]) -> int:
    """Run it; the exit code."""
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.stderr.write(f"missing: {', '.join(missing)}; pip install 'headrace[demo]'\n")
        return 1
    from headrace.demo.run import run

    return asyncio.run(run(Path(arguments[0]) if arguments else Path("model_repository")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
