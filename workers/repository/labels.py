"""`label_filename`: a file beside the model with one class name per line, for the classification extension.

Source: Triton model_config.proto, ModelOutput.label_filename.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from workers.repository.convert import check_inside
from workers.repository.refusal import ConfigRefused

MAX_LABELS_BYTES: Final = 16 * 1024 * 1024
"""Far beyond any real file (the 21 843 classes of the largest image sets take 0.6 MB); each worker holds it."""


def read_labels(model_dir: Path, triton: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Labels by the output's name; outputs without a file are left out.

    Raises:
        ConfigRefused: the file lies elsewhere, is too large or not UTF-8; names output and file.
    """
    labels = {}
    for output in triton.get("output", []):
        file = output.get("label_filename", "")
        if file:
            what = f"output {output.get('name', '')!r}: label_filename"
            labels[output["name"]] = _lines(what, file, model_dir / check_inside(what, file))
    return labels


def _lines(what: str, file: str, path: Path) -> tuple[str, ...]:
    with path.open("rb") as opened:
        content = opened.read(MAX_LABELS_BYTES + 1)
    if len(content) > MAX_LABELS_BYTES:
        raise ConfigRefused(f"{what} = {file!r} has over {MAX_LABELS_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigRefused(f"{what} = {file!r} is not UTF-8 at byte {error.start}") from None
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
