"""Shows a benchmark run on the terminal: the peers left out, the progress, and each row as soon as it is measured."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from jaxring.bench import report
from jaxring.bench.run import Job, installed, measure
from jaxring.bench.status import Status
from jaxring.bench.table import width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from jaxring.bench.programs import Program
    from jaxring.bench.run import Result
    from jaxring.bench.work import Case


def run(
    out: TextIO,
    job: Job,
    cases: Sequence[Case | Program],
    iterations: int,
    warmup: int,
    check: bool,
    record: Callable[[tuple[list[Result], float]], object],
    seconds: float = math.inf,
) -> None:
    """Measures the cases of one collective or program, as `measure` does, and prints each when it is done.

    ``record`` is called with a case's results, and the machine's copy bandwidth in GB/s, before they are printed: what
    has been seen when Ctrl-C ends the run has been recorded.
    """
    table = report.rows(cases, installed(job)[0], width_of(out))
    with (
        Status() as status,
        contextlib.closing(measure(job, cases, iterations, warmup, check, status.say, seconds)) as measured,
    ):
        for number, (results, copy_gbs) in enumerate(measured):
            record((results, copy_gbs))
            status.clear()
            if number == 0:
                lines = ["", report.title(results[0]), *report.caption(table, copy_gbs), "", table.header()]
                print("\n".join(lines), file=out)
            for result in results:
                print(report.row(table, results, result, copy_gbs), file=out)
            out.flush()


def left_out(out: TextIO, job: Job) -> None:
    """Says which peers cannot run, and why."""
    for name, reason in installed(job)[1].items():
        print(f"{name}: left out, {reason}", file=out)
