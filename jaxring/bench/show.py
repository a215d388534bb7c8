"""A benchmark run as a person follows it: who is left out, how far it is, and the table."""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from jaxring.bench import report
from jaxring.bench.run import Job, Result, installed, measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.bench.work import Case


def console() -> Console:
    """On a terminal of its width; a file or pipe has none, and gets the tables' own."""
    return Console() if sys.stdout.isatty() else Console(width=160)


def run(
    out: Console,
    job: Job,
    cases: Sequence[Case],
    iterations: int,
    warmup: int,
    check: bool,
    seconds: float = math.inf,
) -> tuple[list[Result], float]:
    """Measures the cases of one collective, as `measure` does, and prints them.

    Returns the results, and the machine's copy bandwidth in GB/s.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        say = functools.partial(progress.update, progress.add_task("starting"))
        results, copy_gbs = measure(job, cases, iterations, warmup, check, say, seconds)
    out.print(report.table(results, copy_gbs))
    return results, copy_gbs


def left_out(out: Console, job: Job) -> None:
    """Says which peers cannot run, and why."""
    for name, reason in installed(job)[1].items():
        out.print(f"{name}: left out, {reason}", highlight=False)
