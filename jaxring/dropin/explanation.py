"""What `jaxring.explain` returns: lines of text for programs, which terminals and notebooks show as a table."""

from __future__ import annotations

import collections
import dataclasses
import html
import shutil
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import jaxring._native as _native
from jaxring.plan.choice import figures
from jaxring.settings.sizes import shown
from jaxring.trace import flight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jaxring.runtime.explain import Decision


@dataclasses.dataclass(frozen=True)
class Table:
    """``rows`` have a cell for each of ``columns``, and then why it is so. ``notes`` stand below them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self, width: int) -> str:
        """For a terminal of so many columns. The reasons stand below the table, numbered: they are long."""
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.table import Table as Drawn
        from rich.text import Text

        console = Console(width=width, no_color=True, force_terminal=False, highlight=False)
        cells = [[str(number), *row[: len(self.columns)]] for number, row in enumerate(self.rows, 1)]
        drawn = Drawn(box=SIMPLE, header_style="", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        columns = list(zip(("", *self.columns), *cells, strict=True))
        words = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in columns]
        # Not narrower than that, or rich takes words apart in one column and leaves room in another.
        fits = sum(words) + 2 * len(words) <= width
        for (name, *_), word in zip(columns, words, strict=True):
            drawn.add_column(name, overflow="fold", min_width=word if fits else None)
        for line in cells:
            # As Text, or rich would take what stands in brackets for markup.
            drawn.add_row(*map(Text, line))
        with console.capture() as captured:
            if self.rows:
                console.print(drawn)
            for number, row in enumerate(self.rows, 1):
                console.print(Text(f"{number}: {row[-1]}"))
            for note in self.notes:
                console.print(Text(note))
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def html(self) -> str:
        """For a notebook."""

        def line(tag: str, cells: Sequence[str]) -> str:
            style = ' style="text-align: left; vertical-align: top"'
            return f"<tr>{''.join(f'<{tag}{style}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        rows = "".join(line("td", row) for row in self.rows)
        table = f"<table>{line('th', (*self.columns, 'why'))}{rows}</table>" if self.rows else ""
        return table + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)


class Explanation(str):
    """Lines, which are the value for programs, and the table that is made of the same when it is shown."""

    _table: Callable[[], Table]

    def __new__(cls, lines: str, table: Callable[[], Table]) -> Self:
        """``table`` is called each time that the table is shown."""
        made = super().__new__(cls, lines)
        made._table = table
        return made

    def __str__(self) -> str:
        return self._drawn() or super().__str__()

    def __repr__(self) -> str:
        return self._drawn() or super().__repr__()

    def _repr_html_(self) -> str:
        return self._table().html() or f"<p>{html.escape(super().__str__())}</p>"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (super().__str__(),)

    def _drawn(self) -> str:
        """The table, or "" where there is none or stdout is no terminal."""
        return self._table().text(shutil.get_terminal_size().columns) if sys.stdout.isatty() else ""


def of_decisions(decisions: Sequence[Decision], notes: Mapping[str, int]) -> Explanation:
    """A line for each kind of decision, and for each note, with how often it was made where that is not once."""
    kinds: dict[str, list[Decision]] = {}
    for decision in decisions:
        kinds.setdefault(str(decision), []).append(decision)
    counts = {**{text: len(of_it) for text, of_it in kinds.items()}, **notes}
    lines = [text if count == 1 else f"{text} (x{count})" for text, count in counts.items()]
    text = "\n".join(lines)
    if not lines:
        text = "jaxring: no collective has been planned in this process yet, or since explain(clear=True)."
    return Explanation(text, lambda: _table(list(kinds.values()), lines[len(kinds) :]))


def _table(kinds: Sequence[Sequence[Decision]], notes: Sequence[str]) -> Table:
    took = _times() if kinds else {}
    columns = ("call", "at", "taken", "planned", "runs", "median us")
    rows = []
    for of_it in kinds:
        first = of_it[0]
        times = [us for label in {each.label() for each in of_it} for us in took.get(label, ())]
        planned = time.strftime("%H:%M:%S", time.localtime(first.planned_at))
        rows.append(
            (
                f"{first.called()}\n{first.dtype} {shown(first.nbytes)}",
                first.site,
                f"{first.algorithm}/{first.protocol} by {'+'.join(first.transports)}",
                planned if len(of_it) == 1 else f"{planned} (x{len(of_it)})",
                str(len(times)) if times else "-",
                figures(statistics.median(times)) if times else "-",
                f"{first.ranks} ranks in {first.processes} process(es) over {first.axes}, {first.channels} channel(s): "
                + first.why(),
            )
        )
    return Table(columns, rows, notes)


def _times() -> dict[str, list[float]]:
    """By the label of their plan: what the operations took that are recorded and have ended well, in us."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    try:
        records = flight.parse(_native.record_memory()).records
    except (RuntimeError, ValueError):  # nothing has run on CPUs
        return found
    for record in records:
        if record.state == "done":
            found[record.label].append((record.ended - record.launched) / 1e3)
    return found
