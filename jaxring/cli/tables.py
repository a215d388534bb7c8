"""Tables on the terminal, drawn by rich."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def console(width: int = 0) -> Any:
    """Where tables go, `width` characters wide at least where it is no terminal."""
    from rich.console import Console

    # A file or pipe has no width: the table's own.
    return Console() if sys.stdout.isatty() else Console(width=max(160, width))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """A table, or its title and "none" where it has no rows."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        # As Text, or rich would take what stands in brackets for markup.
        made.add_row(*(Text(str(cell)) for cell in row))
    return made if made.row_count else Text(f"{title}: none")
