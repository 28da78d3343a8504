"""Read configuration from where it lies: a file, the environment, flags. The only file here that touches the world."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.config.environment import CONFIG_VARIABLE, parse_environment, parse_flags
from headrace.config.given import ConfigError, Given, Problem
from headrace.config.resolve import Effective, resolve
from headrace.config.yaml_file import parse_yaml

MAX_FILE_BYTES = 1024 * 1024


def load(
    file: Path | None = None,
    *,
    sets: Iterable[str] = (),
    flags: Iterable[Given] = (),
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """What is in force now.

    Raises:
        ConfigError: something is wrong; every problem is listed.
    """
    variables = os.environ if environment is None else environment
    where = file or (Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None)
    from_file = parse_yaml(read_file(where), str(where)) if where else []
    return resolve([from_file, parse_environment(variables), [*parse_flags(sets), *flags]])


def check_file(file: Path) -> Effective:
    """Only what the file says, over the defaults."""
    return resolve([parse_yaml(read_file(file), str(file))])


def read_file(file: Path) -> str:
    """Text of a configuration file."""
    try:
        with file.open(encoding="utf-8") as f:
            text = f.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ConfigError([Problem(str(file), f"can't be read: {e.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(str(file), "is not UTF-8 text")]) from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError([Problem(str(file), f"is over {MAX_FILE_BYTES} bytes")])
    return text
