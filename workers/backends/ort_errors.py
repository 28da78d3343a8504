"""What ONNX Runtime says when it fails, as callers may read it: one line, without its build's paths and signatures.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

MAX_ERROR_CHARS: Final = 400

_SOURCE = re.compile(r"(?:[^\s'\"]*[/\\])?[\w.-]+\.(?:h|hpp|cc|cpp|cxx|cu|cuh|inl):\d+ ")
_CONDITION = re.compile(r"^.{0,1000}? was false\.\s+(?=\S)")
_SIGNATURE = re.compile(
    r"^(?:[\w:~<>,&*\[\] ]{1,500}\([^)]{0,1000}\)(?: const)?(?: \[with [^\]]{0,500}\])?|[\w:~<>]{1,200}) (?=\S)"
)
_NODE = re.compile(r"Non-zero status code returned while running (\S+) node\. Name:'([^']*)' Status Message: ")


def first_line(error: Exception) -> str:
    """The engine's reason, with the node that failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines) if len(lines) < 4 else lines[0]
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = _NODE.sub(lambda found: f"{found[1]} node {found[2]!r} failed: ", _without_source(text))
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


def _without_source(text: str) -> str:
    """Each `file.h:59 signature condition was false. reason` becomes its reason."""
    before, *after = _SOURCE.split(text)
    return before + "".join(_reason(part) for part in after)


def _reason(part: str) -> str:
    rest = _CONDITION.sub("", part, count=1)
    return rest if rest != part else _SIGNATURE.sub("", part, count=1)
