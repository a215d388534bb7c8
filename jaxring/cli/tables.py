"""Tables on the terminal, drawn by rich."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jaxring.bench.table import width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def console(width: int = 0) -> Any:
    """Where tables go, `width` characters wide at least where it is no terminal."""
    from rich.console import Console

    # A file or pipe has no width: the table's own.
    return Console() if sys.stdout.isatty() else Console(width=max(160, width))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> Any:
    """A table, or its title and "none" where it has no rows.

    Where stdout is a terminal too narrow for the longest word of each column, those of ``spare`` are left out, the
    first one first.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[str(cell) for cell in row] for row in rows]
    words = {
        column: max(len(word) for cell in (column, *(row[at] for row in cells)) for word in (cell.split() or [""]))
        for at, column in enumerate(columns)
    }
    width, kept = width_of(), list(columns)
    for column in spare:
        if width and _needs(words[name] for name in kept) > width:
            kept.remove(column)
    fits = bool(width) and _needs(words[name] for name in kept) <= width
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for column in kept:
        # Not narrower than that, or rich takes words apart in one column and leaves room in another.
        made.add_column(column, overflow="fold", min_width=words[column] if fits else None)
    for row in cells:
        # As Text, or rich would take what stands in brackets for markup.
        made.add_row(*(Text(cell) for column, cell in zip(columns, row, strict=True) if column in kept))
    return made if made.row_count else Text(f"{title}: none")


def _needs(words: Iterable[int]) -> int:
    """The width of a table with these columns, each between a line and blanks."""
    return sum(word + 3 for word in words) + 1
