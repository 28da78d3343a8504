"""docs/configuration.md and configs/headrace.yaml, made from the typed settings. `python -m headrace.config.docs`.

A test keeps the files equal to what this writes: tests/unit/test_docs.py.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import yaml
from pydantic import BaseModel

from headrace.config.environment import variable_name
from headrace.config.keys import Key, all_keys, section_of
from headrace.config.settings import HeadraceSettings

MARKDOWN = Path("docs/configuration.md")
EXAMPLE = Path("configs/headrace.yaml")

_INTRO = """\
# Configuration

<!-- Made by `python -m headrace.config.docs` from the typed settings. Change the settings, not this file. -->

A value is taken from the first of these that gives it:

1. a flag: `--http-port 8080`, or for any key `--set gateway.http_port=8080`;
2. an environment variable: `HEADRACE_GATEWAY__HTTP_PORT=8080`. Two underscores stand for the dot; lists are written
   `a,b` or as YAML, mappings as YAML;
3. the YAML file named by `--config FILE` or `HEADRACE_CONFIG` ([configs/headrace.yaml](../configs/headrace.yaml) holds
   every key with its default and runs as it is);
4. the default below.

`headrace config show` prints each value in force and where it came from. `headrace config check FILE` checks a file
without starting anything. Unknown keys and values that are not allowed are refused with file and line. Relative paths
count from the folder a command is started in. Keys under `broker` hold for the gateway and the workers; either may
have a `broker` section of its own (`gateway.broker.servers`), whose keys win over the shared ones of the same layer.
"""

_YAML_INTRO = """\
# Every key with its default: it changes nothing and runs as it is (`headrace up --config configs/headrace.yaml`).
# Delete what you don't change. Made by `python -m headrace.config.docs` from the typed settings.
#
# Flags win over environment (HEADRACE_GATEWAY__HTTP_PORT=8080), environment over this file.
"""


def markdown() -> str:
    """The text of docs/configuration.md."""
    parts = [_INTRO]
    for section, keys in _by_section():
        parts.append(f"\n## {section}\n\n{_describe(section)}\n")
        parts.append("| key | default | allowed | unit | what it does |\n|---|---|---|---|---|")
        parts.extend(_row(k) for k in keys)
    return "\n".join(parts) + "\n"


def example() -> str:
    """The text of configs/headrace.yaml."""
    lines = [_YAML_INTRO]
    for section, keys in _by_section():
        lines.append(f"\n# {_describe(section)}\n{section}:")
        opened: list[str] = []
        for key in keys:
            parts = key.pattern.replace(".*.", ".default.").split(".")[1:]
            for depth, part in enumerate(parts[:-1]):
                if opened[: depth + 1] != parts[: depth + 1]:
                    lines.append(f"{'  ' * (depth + 1)}{part}:")
            opened = parts[:-1]
            indent = "  " * len(parts)
            lines.append(f"{indent}# {key.description} [{_limits(key)}]")
            lines.append(f"{indent}{parts[-1]}: {_scalar(key.default)}")
    return "\n".join(lines) + "\n"


def _by_section() -> list[tuple[str, list[Key]]]:
    keys = [k for k in all_keys() if not k.pattern.startswith(("gateway.broker.", "worker.broker."))]
    return [(name, list(members)) for name, members in groupby(keys, lambda k: k.pattern.split(".", 1)[0])]


def _describe(section: str) -> str:
    field = HeadraceSettings.model_fields[section]
    return ((section_of(field.annotation) or BaseModel).__doc__ or "").strip()


def _row(key: Key) -> str:
    cells = (f"`{key.pattern}`", f"`{_scalar(key.default)}`", key.allowed, key.unit, key.description)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _limits(key: Key) -> str:
    return f"{key.allowed}{f'; {key.unit}' if key.unit else ''}"


def _scalar(value: object) -> str:
    plain = str(value) if isinstance(value, Path) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000, explicit_end=False).strip()
    return text.removesuffix("...").strip()


def main() -> None:
    """Write both files."""
    MARKDOWN.write_text(markdown(), encoding="utf-8")
    EXAMPLE.write_text(example(), encoding="utf-8")
    print(f"wrote {MARKDOWN} and {EXAMPLE}; variables look like {variable_name('gateway.http_port')}")


if __name__ == "__main__":
    main()
