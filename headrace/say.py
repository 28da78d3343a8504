"""Progress for people: each step with its time; colours on a terminal, plain lines elsewhere. Decides nothing."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.markup import escape


class Say:
    """Prints to stdout. `silent` prints nothing, for use as a library."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._started_s = time.monotonic()
        self.console = Console(
            file=sys.stdout, highlight=False, soft_wrap=True, no_color=None if sys.stdout.isatty() else True
        )

    def step(self, what: str, text: str) -> None:
        """One step that is done, with the time since the start."""
        at_s = time.monotonic() - self._started_s
        self.line(f"[dim]{at_s:6.2f} s[/dim]  [bold]{escape(f'{what:<8}')}[/bold] {escape(text)}")

    def text(self, text: str = "") -> None:
        """A line as it is."""
        self.line(escape(text))

    def warning(self, text: str) -> None:
        """A line that asks for attention."""
        self.line(f"[yellow]{escape(text)}[/yellow]")

    def line(self, markup: str) -> None:
        """A line in rich's markup."""
        if not self._silent:
            self.console.print(markup)
            self.console.file.flush()
