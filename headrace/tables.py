"""Tables for people: rich on a terminal, aligned plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Sequence[str]


def print_table(title: str, columns: Row, rows: Sequence[Row]) -> None:
    """Print to stdout; every cell is plain text."""
    if not sys.stdout.isatty():
        for line in plain_table(title, columns, rows):
            sys.stdout.write(line + "\n")
        return
    table = Table(title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def plain_table(title: str, columns: Row, rows: Sequence[Row]) -> list[str]:
    """The same as lines: the title, the header, the rows, columns two blanks apart."""
    widths = [max(len(r[i]) for r in (columns, *rows)) for i in range(len(columns))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in (columns, *rows)]
    return [title, *lines] if title else lines
