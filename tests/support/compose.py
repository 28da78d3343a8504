"""compose.yaml as Docker would read it: variables filled in, merges resolved, checked against the specification."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from compose_spec import PyCompose

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose.yaml"
VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::-([^}]*))?\})")


def read_compose(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The whole file; a `$$` stays for the reader, as Compose has it only after this step.

    Raises:
        ValueError: what the specification does not know.
    """
    given = variables or {}

    def fill(found: re.Match[str]) -> str:
        return "$$" if found[0] == "$$" else given.get(found[1], found[2] or "")

    compose: dict[str, Any] = yaml.safe_load(VARIABLE.sub(fill, FILE.read_text()))
    PyCompose.from_json(json.dumps(compose)).validate()
    return compose


def words_of(command: list[str]) -> list[str]:
    """A command as the container gets it."""
    return [word.replace("$$", "$") for word in command]


def source_of(volume: str) -> tuple[str, str, bool]:
    """`source:target[:ro]`: source, target, whether it is read-only."""
    source, target, *mode = volume.split(":")
    return os.path.normpath(ROOT / source) if source.startswith((".", "/")) else source, target, mode == ["ro"]
