"""What every block of the demo has at hand: the running parts, the models' files, a place to speak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.client import Client
from headrace.launcher import Running
from headrace.say import Say


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a block plays."""

    running: Running
    repository: Path
    say: Say

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
