"""What every block of the demo has at hand: the running parts, the models' files, a place to speak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.client import Client
from headrace.launcher import Running
from headrace.say import Say

HOT_LOADED = "sentiment"
"""The model whose second version arrives during the demo."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a block plays."""

    running: Running
    repository: Path
    watched: Path
    """What the workers serve and follow: links to the models, so that the demo can change it."""
    say: Say

    @property
    def new_version(self) -> Path:
        """Folder of the version that is not served at the start."""
        return (self.repository / HOT_LOADED / "2").resolve()

    def client(self) -> Client:
        """A connection of one's own to the gateway."""
        return Client(self.running.http_url)

    def title(self, text: str) -> None:
        """Begin a block."""
        self.say.text()
        self.say.step("demo", text)

    def by_hand(self, command: str) -> None:
        """End a block with the one command that does it while `make up` runs."""
        self.say.text(f"          by hand, while `make up` runs: {command}")

    def verdict(self, wrong: list[str]) -> bool:
        """Whether a block was right; what was wrong is said."""
        for text in wrong:
            self.say.warning(f"wrong: {text}")
        return not wrong
