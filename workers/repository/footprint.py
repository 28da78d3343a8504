"""What a model's folder looks like from outside, so that a change shows without reading any file. Decides nothing.

A footprint names every file with its size, time of change and inode; symbolic links count as what they point to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from workers.repository.scan import CONFIG_FILE, is_version

MAX_FILES: Final = 20_000
MAX_DEPTH: Final = 16
"""Ends at links that lead into themselves."""
_IGNORED: Final = frozenset({"__pycache__"})
"""Importing a model.py writes it."""

Print = tuple[str, int, int, int]
"""(path, bytes, nanoseconds, inode) of a file."""
Prints = tuple[Print, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model's folder at one moment; equal ones hold the same files."""

    config: Prints = ()
    """config.pbtxt."""
    shared: Prints = ()
    """What lies beside it and the version folders: labels, warm-up data, a tokenizer."""
    versions: dict[str, Prints] = field(default_factory=dict)
    """Each version folder."""


def take_footprint(model_dir: Path) -> Footprint | None:
    """Blocks. None where there is no such folder."""
    if not model_dir.is_dir():
        return None
    config: list[Print] = []
    shared: list[Print] = []
    versions: dict[str, list[Print]] = {}
    for name in _names(model_dir):
        if is_version(name) and (model_dir / name).is_dir():
            versions[name] = []
    for found in islice(_walk(model_dir, "", MAX_DEPTH), MAX_FILES):
        path = found[0]
        place = config if path == CONFIG_FILE else versions.get(path.partition("/")[0], shared)
        place.append(found)
    return Footprint(tuple(config), tuple(shared), {name: tuple(prints) for name, prints in versions.items()})


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[Print]:
    for name in _names(folder):
        path = folder / name
        try:
            found = path.stat()
            is_dir = path.is_dir()
        except OSError:  # gone meanwhile, or a link to nowhere
            continue
        if not is_dir:
            yield f"{prefix}{name}", found.st_size, found.st_mtime_ns, found.st_ino
        elif depth:
            yield from _walk(path, f"{prefix}{name}/", depth - 1)


def _names(folder: Path) -> list[str]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(name for name in names if name not in _IGNORED and not name.startswith("."))
