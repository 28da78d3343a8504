"""Which packages each extra brings, and which of them are missing here. Imports none of them."""

from __future__ import annotations

import importlib.util

EXTRAS: dict[str, dict[str, str]] = {
    "gateway": {
        "httptools": "httptools",
        "orjson": "orjson",
        "prometheus_client": "prometheus-client",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
    },
    "worker": {
        "onnxruntime": "onnxruntime",
        "google.protobuf": "protobuf",
        "psutil": "psutil",
        "tokenizers": "tokenizers",
        "tritonclient": "tritonclient[grpc]",
    },
    "demo": {"tokenizers": "tokenizers"},
}
"""Module and package by extra; `tests/unit/test_extras.py` holds it to pyproject.toml."""


def missing(extra: str) -> list[str]:
    """Packages of an extra that are not installed."""
    return [package for module, package in EXTRAS[extra].items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # not even the package it lies in


def complaint(*extras: str) -> str:
    """What to install for these extras to work; empty if nothing."""
    lacking = {extra: packages for extra in extras if (packages := missing(extra))}
    if not lacking:
        return ""
    names = ", ".join(package for packages in lacking.values() for package in packages)
    return f"not installed: {names}; pip install 'headrace[{','.join(lacking)}]'"
