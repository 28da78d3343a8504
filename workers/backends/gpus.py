"""Which NVIDIA GPUs this process may use, without a driver library. Knows nothing of models."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_DEVICE: Final = re.compile(r"nvidia([0-9]+)\Z")


def visible_gpus() -> tuple[int, ...]:
    """Device numbers as CUDA counts them: from 0, over the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    devices = Path("/dev")
    num = sum(1 for path in devices.iterdir() if _DEVICE.match(path.name)) if devices.is_dir() else 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        # CUDA stops at the first entry it can't use; -1 and an empty value hide all.
        names = [name.strip() for name in chosen.split(",")]
        num = min(num, next((at for at, name in enumerate(names) if name in ("", "-1")), len(names)))
    return tuple(range(num))
