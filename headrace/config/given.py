"""One value somebody gave for one key, and where; what can be wrong with it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """A value for a key. `is_text` values come from flags or the environment and are still to be read."""

    path: tuple[str, ...]
    """The key's parts: a user's own names may hold dots."""
    value: object
    origin: str
    """`file:line`, the variable's or the flag's name."""
    is_text: bool = False

    @property
    def key(self) -> str:
        """The key as people write it."""
        return dotted(self.path)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    origin: str
    text: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


class ConfigError(Exception):
    """The configuration can't be used; every problem is listed, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


def dotted(path: tuple[str, ...]) -> str:
    """`gateway.http_port`; a part that holds a dot itself is put in quotes."""
    return ".".join(f'"{part}"' if "." in part else part for part in path)
