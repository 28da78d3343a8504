"""Every package that is imported is declared by its own name, not only there because another one needs it."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("contract", "transport", "gateway", "workers", "headrace")
OURS = {*PACKAGES, "tests", "tools", "triton_python_backend_utils"}
OURS |= {path.stem for path in (ROOT / "bench").glob("*.py")}  # test_bench imports them as the scripts that they are
OPTIONAL = {"ml_dtypes", "cupy", "torch"}
"""Only imported where a model uses them, with an error that names what is missing."""
EXTRAS = PROJECT["project"]["optional-dependencies"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!;(]", name)[0]).lower()


def declared(*lists: list[object]) -> set[str]:
    return {normal(entry) for entries in lists for entry in entries if isinstance(entry, str)}


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Top-level names with the file that imports them; scripts that lie side by side import each other."""
    for path in sorted(folder.rglob("*.py")):
        if "peers" in path.parts or ".peers" in path.parts:
            continue
        beside = {p.stem for p in path.parent.iterdir()}
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in (n.partition(".")[0] for n in names):
                if name not in sys.stdlib_module_names and name not in OURS and name not in beside:
                    yield name, str(path.relative_to(ROOT))


RUNTIME = declared(PROJECT["project"]["dependencies"])
DEV = RUNTIME | declared(EXTRAS["gateway"], EXTRAS["worker"], EXTRAS["local"], EXTRAS["demo"])
DEV |= declared(PROJECT["dependency-groups"]["dev"])
ALLOWED = {
    "contract": RUNTIME,
    "transport": RUNTIME,
    "gateway": RUNTIME | declared(EXTRAS["gateway"], EXTRAS["limits"]),
    "workers": RUNTIME | declared(EXTRAS["worker"]),
    "headrace": RUNTIME | declared(EXTRAS["gateway"], EXTRAS["worker"], EXTRAS["local"], EXTRAS["demo"]),
    "tests": DEV,
    "bench": DEV,
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_what_is_imported_is_declared(folder: str) -> None:
    distributions = packages_distributions()
    optional = OPTIONAL if folder in PACKAGES else set()
    missing = [
        f"{file}: {name}"
        for name, file in imported(ROOT / folder)
        if name not in optional and not {normal(d) for d in distributions.get(name, [name])} & ALLOWED[folder]
    ]
    assert missing == []
