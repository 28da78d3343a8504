"""Magika: what kind of file do these bytes come from? The package's own ONNX file, as it is.

    bytes INT32 [n, 2048]  ->  target_label FP32 [n, 214], a probability per type in labels.txt

The 2048 numbers are the first 1024 bytes and the last 1024, stripped of white space, with 256 where there are none.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

MODEL = "models/standard_v3_3/model.onnx"


def build(folder: Path) -> None:
    """Copy the model into `folder`."""
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("package magika is missing, see requirements/models.lock")
    shutil.copyfile(Path(spec.origin).parent / MODEL, folder / "model.onnx")
