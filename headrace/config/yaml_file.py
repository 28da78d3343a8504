"""YAML text to given values that know their line. Reads no file; checks no value."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from headrace.config.given import ConfigError, Given, Problem, dotted
from headrace.config.keys import find_key, is_section

MAX_DEPTH = 8


def parse_yaml(text: str, file: str) -> list[Given]:
    """Every value of the file by dotted key, in the order of the file.

    Raises:
        ConfigError: not YAML, not a mapping, a key twice; each with `file:line`.
    """
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise ConfigError([Problem(f"{file}:{line}", f"not valid YAML: it holds the character {bad.group()!r}")])
    loader = yaml.SafeLoader(text)
    reader = _Reader(loader, file)
    try:
        root = loader.get_single_node()
        if root is not None:
            reader.descend(root, ())
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise ConfigError([Problem(f"{file}:{line}", f"not valid YAML: {e.problem or e.context}")]) from None
    finally:
        loader.dispose()
    if reader.problems:
        raise ConfigError(reader.problems)
    return reader.found


class _Reader:
    """Walks the nodes of one file."""

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self.loader = loader
        self.file = file
        self.found: list[Given] = []
        self.problems: list[Problem] = []

    def descend(self, node: Node, prefix: tuple[str, ...]) -> None:
        """Collect the values under one mapping."""
        if not isinstance(node, MappingNode) or len(prefix) > MAX_DEPTH:
            self._complain(node, "a section, `name:` with keys under it, belongs here")
            return
        seen: dict[str, int] = {}
        for name_node, value in node.value:
            name = name_node.value if isinstance(name_node, ScalarNode) else "?"
            path = (*prefix, name)
            if name in seen:
                self._complain(name_node, f"{dotted(path)} is given twice, first in line {seen[name]}")
                continue
            seen[name] = name_node.start_mark.line + 1
            if isinstance(value, MappingNode) and value.value and _goes_deeper(path):
                self.descend(value, path)
                continue
            given: Any = self.loader.construct_object(value, deep=True)
            if not (given in (None, {}) and is_section(path)):
                self.found.append(Given(path, given, f"{self.file}:{seen[name]}"))

    def _complain(self, node: Node, text: str) -> None:
        self.problems.append(Problem(f"{self.file}:{node.start_mark.line + 1}", text))


def _goes_deeper(path: tuple[str, ...]) -> bool:
    """Whether values lie under `path`. Unknown keys are not descended into: one complaint about them is enough."""
    if is_section(path):
        return True
    known = find_key(path)
    return known is not None and known.allowed.startswith("mapping")
