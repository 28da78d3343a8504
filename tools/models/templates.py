"""Write sentences from Home Assistant's sentence templates. Understands as much of their grammar as English uses.

    (a|b) one of them   [a] with or without   <rule> another template   {list} one of its values   (a;b) in any order

Source: the hassil template language, as in the package home-assistant-intents.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

INNERMOST = re.compile(r"\(([^()\[\]]*)\)|\[([^()\[\]]*)\]")
RULE = re.compile(r"<([^<>]+)>")
SLOT = re.compile(r"\{([^{}:]+)(?::[^{}]*)?\}")
MAX_DEPTH = 20


class SentenceWriter:
    """Draws sentences; what it draws depends on the seed alone."""

    def __init__(self, rules: Mapping[str, str], values: Mapping[str, Sequence[str]], seed: int) -> None:
        self._rules = rules
        self._values = values
        self._random = random.Random(seed)  # noqa: S311 - draws sentences, keeps no secret

    def sentence(self, template: str) -> str:
        """One sentence of the template."""
        text = template
        for _ in range(MAX_DEPTH):
            before = text
            text = RULE.sub(lambda found: f"({self._rules[found[1]]})", text)
            text = SLOT.sub(lambda found: f"({self._random.choice(self._values[found[1]])})", text)
            text = INNERMOST.sub(self._chosen, text)
            if text == before:
                break
        return " ".join(text.split())

    def _chosen(self, found: re.Match[str]) -> str:
        required, optional = found.groups()
        if optional is not None and self._random.random() < 0.5:
            return ""
        body = optional if required is None else required
        if ";" in body:
            parts = body.split(";")
            self._random.shuffle(parts)
            return " ".join(parts)
        return self._random.choice(body.split("|"))
