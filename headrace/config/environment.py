"""Environment variables and `--set key=value` flags to given values. Reads a mapping it is handed, nothing else.

`HEADRACE_GATEWAY__HTTP_PORT=8080` is `gateway.http_port: 8080`: two underscores stand for the dot. Lists may be written
`a,b` or as YAML `[a, b]`; mappings as YAML `{name: value}`. Names that hold dots can only be given in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_origin

import yaml

from headrace.config.given import ConfigError, Given, Problem
from headrace.config.keys import Key, all_keys

PREFIX = "HEADRACE_"
CONFIG_VARIABLE = "HEADRACE_CONFIG"
"""Names the configuration file where no `--config` does."""


def variable_name(key: str) -> str:
    """The environment variable of a key."""
    return PREFIX + key.replace(".", "__").upper()


def parse_environment(environment: Mapping[str, str]) -> list[Given]:
    """Values from `HEADRACE_…` variables. Names that are no setting's form (`HEADRACE_TEST`) are left alone."""
    sections = {k.pattern.split(".", 1)[0].upper() for k in all_keys()}
    found: list[Given] = []
    for name in sorted(environment):
        rest = name.removeprefix(PREFIX)
        if name in {rest, CONFIG_VARIABLE}:
            continue
        if "__" not in rest and rest.split("_", 1)[0] not in sections:
            continue
        found.append(Given(tuple(rest.lower().split("__")), environment[name], name, is_text=True))
    return found


def parse_flags(pairs: Iterable[str]) -> list[Given]:
    """Values from `--set key=value` flags.

    Raises:
        ConfigError: no `=` in one of them.
    """
    found: list[Given] = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError([Problem(f"--set {pair}", "it has the form --set key=value")])
        found.append(Given(tuple(key.strip().split(".")), value, f"--set {key.strip()}", is_text=True))
    return found


def read_text(key: Key, text: str) -> Any:
    """The value that a variable's text stands for, before its type is checked.

    Raises:
        ValueError: a list or mapping that is not YAML.
    """
    origin = get_origin(key.annotation)
    stripped = text.strip()
    if origin is list and not stripped.startswith("["):
        return [part.strip() for part in stripped.split(",") if part.strip()]
    if origin in {list, dict}:
        try:
            return yaml.safe_load(stripped)
        except yaml.YAMLError as e:
            raise ValueError(f"not valid YAML: {e}") from None
    if stripped in {"null", ""} and "or null" in key.allowed:
        return None
    return text
