"""Reads a Dockerfile into stages, as far as ours goes: one instruction per line, `\\` joins lines. Builds nothing."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """What a `FROM … AS name` holds, its base stage's instructions before its own."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, word: str) -> str:
        """The argument that is in force."""
        return [rest for instruction, rest in self.instructions if instruction == word][-1]

    def all(self, word: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == word]

    @property
    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for line in self.all("ENV") for pair in shlex.split(line))
        return {name: value for name, _, value in pairs}

    @property
    def health_command(self) -> list[str]:
        command: list[str] = json.loads(self.last("HEALTHCHECK").partition(" CMD ")[2])
        return command


def read_stages(file: Path) -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in file.read_text().replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            inherited = stages[base].instructions if base in stages else []
            stage = stages[name] = Stage(base, [*inherited])
        elif word and not word.startswith("#"):
            stage.instructions.append((word, rest.strip()))
    return stages
