"""Model files that came with a load request, written to a folder of this worker's own and to nowhere else.

Each upload gets a new, private folder, so that no path in it can meet a link somebody laid there. Parses no config.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from contract.errors import InvalidInput

MAX_FILES: Final = 1_000
MAX_PATH_BYTES: Final = 1_024
MAX_PART_BYTES: Final = 255
"""What Linux file systems take for one name."""


class Uploads:
    """This worker's temporary folder; made with the first upload, unless the pool gave it one that outlives it."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._is_own = folder is None

    def write(self, model: str, files: Mapping[str, bytes]) -> Path:
        """Blocks. The model's folder, which bears its name and holds exactly `files`.

        Raises:
            InvalidInput: a name or path that could lead out of that folder, or contradicts another; nothing is left.
        """
        check_paths(model, files)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="headrace-models-"))
        outer = Path(tempfile.mkdtemp(dir=self._folder))
        model_dir = outer / model
        model_dir.mkdir()
        try:
            for name, data in files.items():
                path = model_dir / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # Fails on whatever is there already, a link included.
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
        except (FileExistsError, NotADirectoryError):
            shutil.rmtree(outer, ignore_errors=True)
            raise InvalidInput(f"file {name!r} stands where another file or folder of the upload is") from None
        except BaseException:
            shutil.rmtree(outer, ignore_errors=True)
            raise
        return model_dir

    def remove(self, model_dir: Path) -> None:
        """Blocks. Forget an upload; a folder that is none of them is left alone."""
        if self._folder is not None and model_dir.parent.parent == self._folder:
            shutil.rmtree(model_dir.parent, ignore_errors=True)

    def clear(self) -> None:
        """Blocks. Forget all, but leave what the pool's next worker takes up."""
        folder = self._folder
        if folder is not None and self._is_own:
            self._folder = None
            shutil.rmtree(folder, ignore_errors=True)


def check_paths(model: str, files: Mapping[str, bytes]) -> None:
    """Raises InvalidInput for a model or file name that is not plainly below its folder."""
    if len(files) > MAX_FILES:
        raise InvalidInput(f"{len(files)} files are sent, at most {MAX_FILES} are allowed")
    if not _is_plain(model):
        raise InvalidInput(f"model name {model!r} can't be a folder's")
    for name in files:
        parts = name.split("/")
        if len(name.encode(errors="replace")) > MAX_PATH_BYTES or not all(_is_plain(part) for part in parts):
            raise InvalidInput(f"file {name[:200]!r} is not a plain path below the model's folder")
        assert not PurePosixPath(name).is_absolute()


def _is_plain(part: str) -> bool:
    is_sane = part.isprintable() and "\\" not in part and "/" not in part
    return is_sane and part not in {"", ".", ".."} and len(part.encode(errors="replace")) <= MAX_PART_BYTES
