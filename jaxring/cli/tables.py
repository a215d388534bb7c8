"""Tables: drawn by rich on a terminal, aligned plain text where stdout is a file or a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jaxring.bench import table as plain
from jaxring.bench.table import width_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def console() -> Any:
    """Where tables go. A file or a pipe has no width: there a line is as long as it is."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> Any:
    """A table, or its title and "none" where it has no rows; a line for each row where stdout is no terminal.

    Where it is a terminal too narrow for the longest word of each column, those of ``spare`` are left out, the
    first one first.
    """
    from rich.table import Table
    from rich.text import Text

    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return Text(f"{title}: none")
    width, kept = width_of(), list(columns)
    if not width:
        lines = plain.rows([plain.Column(name, 0, text=True) for name in columns], cells)
        return Text("\n".join([title, *lines]))
    words = {
        column: max(len(word) for cell in (column, *(row[at] for row in cells)) for word in (cell.split() or [""]))
        for at, column in enumerate(columns)
    }
    for column in spare:
        if _needs(words[name] for name in kept) > width:
            kept.remove(column)
    fits = _needs(words[name] for name in kept) <= width
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for column in kept:
        # Not narrower than that, or rich takes words apart in one column and leaves room in another.
        made.add_column(column, overflow="fold", min_width=words[column] if fits else None)
    for row in cells:
        # As Text, or rich would take what stands in brackets for markup.
        made.add_row(*(Text(cell) for column, cell in zip(columns, row, strict=True) if column in kept))
    return made


def tree(made: Any) -> Any:
    """A tree of rich's, as lines that are merely indented where stdout is no terminal."""
    from rich.text import Text

    return made if width_of() else Text("\n".join(_indented(made, "")))


def _indented(made: Any, indent: str) -> Iterator[str]:
    yield f"{indent}{made.label}"
    for child in made.children:
        yield from _indented(child, indent + "    ")


def _needs(words: Iterable[int]) -> int:
    """The width of a table with these columns, each between a line and blanks."""
    return sum(word + 3 for word in words) + 1
