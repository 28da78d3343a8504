"""What a worker was asked to load, kept in a file for whoever takes its place should it die. Reads no model.

The file lies in a folder that the pool makes for each of its workers and removes when it ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import structlog

SLOT_FOLDER: Final = "HEADRACE_SLOT_FOLDER"
"""Environment variable by which the pool tells a worker of that folder."""
_FILE: Final = "loaded.json"

log = structlog.get_logger()


class Source(msgspec.Struct, frozen=True):
    """Where a model was loaded from."""

    model_dir: str
    config: str = ""
    """In place of the folder's own."""


def read_saved(folder: Path) -> dict[str, Source] | None:
    """Blocks. None where nothing was saved, or nothing that can be read."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=dict[str, Source])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as e:
        log.error("loaded-models-not-read", error=str(e))
        return None


def save(folder: Path, models: dict[str, Source]) -> None:
    """Blocks. All at once or not at all."""
    staged = folder / f".{_FILE}.{os.getpid()}"
    try:
        staged.write_bytes(msgspec.json.encode(models))
        staged.replace(folder / _FILE)
    except OSError as e:
        log.error("loaded-models-not-saved", error=str(e))
