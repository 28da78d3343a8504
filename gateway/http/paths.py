"""`/v2/models/…` paths to model, version and action. Works on the raw path, so that an encoded slash stays in a name.

Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from contract.errors import InvalidInput
from contract.subjects import check_name

PREFIX: Final = b"/v2/models/"
ACTIONS: Final = frozenset({"infer", "ready", "config", ""})
MAX_PATH_BYTES: Final = 4096


class ModelPath(NamedTuple):
    """What the path of a model route names; `version` is empty where it names none, `action` for metadata."""

    model: str
    version: str
    action: str


def parse_model_path(raw_path: bytes) -> ModelPath | None:
    """The model route that a raw path (without query) takes, or None.

    Raises:
        InvalidInput: a model route, but its name is no name: bad encoding, control characters, too long.
    """
    if not raw_path.startswith(PREFIX) or len(raw_path) > MAX_PATH_BYTES:
        return None
    parts = raw_path[len(PREFIX) :].split(b"/")
    model, rest = parts[0], parts[1:]
    version = b""
    if len(rest) >= 2 and rest[0] == b"versions":
        version, rest = rest[1], rest[2:]
        if not version:
            return None
    if not model or len(rest) > 1:
        return None
    action = rest[0].decode("latin-1") if rest else ""
    if (rest and not action) or action not in ACTIONS:
        return None
    return ModelPath(path_name(model, "model name"), path_name(version, "model version") if version else "", action)


def path_name(raw: bytes, what: str) -> str:
    """One step of a raw path as a name. Raises InvalidInput, see `parse_model_path`."""
    try:
        name = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} {raw[:128]!r} is not percent-encoded UTF-8") from None
    return check_name(name, what)
