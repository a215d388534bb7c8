"""Tables of the benchmarks: plain text in aligned columns, for terminals, files and other programs alike.

Rows can be printed as they are made, so widths are settled before the first one. Where a terminal is too narrow for
all columns those that matter least are left out; a number is never cut.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TextIO

_GAP = "  "


@dataclasses.dataclass(frozen=True)
class Column:
    """``width``: what its cells need at most; ``worth``: those of the least are left out first, those of 100 never.

    ``text``: aligned to the left, and the last column's is cut where the line ends.
    """

    name: str
    width: int
    worth: int = 100
    text: bool = False

    def cell(self, text: str) -> str:
        """As wide as the column."""
        return text.ljust(self.width) if self.text else text.rjust(self.width)


class Table:
    """What fits of ``columns`` in lines of ``width`` characters; 0: all of them."""

    def __init__(self, columns: Sequence[Column], width: int = 0) -> None:
        # A header that is wider than its cells.
        self.columns = [dataclasses.replace(c, width=max(c.width, len(c.name))) for c in columns]
        self.width = width
        for column in sorted(self.columns, key=lambda column: column.worth):
            if width and self._needs() > width and column.worth < 100:
                self.columns.remove(column)

    def _needs(self) -> int:
        return sum(column.width for column in self.columns) + len(_GAP) * (len(self.columns) - 1)

    def header(self) -> str:
        """The names of the columns."""
        return self.row({column.name: column.name for column in self.columns})

    def row(self, cells: Mapping[str, str]) -> str:
        """A line, of cells by their columns' names."""
        line = _GAP.join(column.cell(cells.get(column.name, "")) for column in self.columns).rstrip()
        return self._cut(line) if self.columns[-1].text else line

    def note(self, cells: Mapping[str, str], text: str) -> str:
        """A line that has ``text`` in place of numbers."""
        first = [column.cell(cells[column.name]) for column in self.columns if column.name in cells]
        return self._cut(_GAP.join([*first, text]))

    def _cut(self, line: str) -> str:
        return line if not self.width or len(line) <= self.width else line[: self.width - 1] + "…"


def rows(columns: Sequence[Column], cells: Iterable[Sequence[str]], width: int = 0) -> list[str]:
    """A whole table: a header, and a line for each of ``cells``. Columns are as wide as what they hold."""
    lines = [dict(zip([column.name for column in columns], line, strict=True)) for line in cells]
    wide = [
        dataclasses.replace(column, width=max([column.width, *(len(line[column.name]) for line in lines)]))
        for column in columns
    ]
    table = Table(wide, width)
    return [table.header(), *map(table.row, lines)]


def width_of(stream: TextIO | None = None) -> int:
    """The width of a terminal; 0 for a file or a pipe, which has none. By default stdout's."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else 0
