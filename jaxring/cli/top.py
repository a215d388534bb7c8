"""Look at a job while it runs: what each process does, what each call takes, and who comes late.

    jaxring top                   shows this user's job on this host, again every two seconds, until Ctrl-C
    jaxring top --once --json     looks for two seconds and prints what it saw

Reads the flight records in the memory of the job's processes on this host, which only their user may: the job does
nothing for it. Processes of other hosts are not shown: run it there, too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import argparse

    from jaxring.trace.jobs import Living
    from jaxring.trace.live import View

HELP = "show what a running job does"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring top`."""
    parser.add_argument(
        "--job",
        metavar="JOB",
        help="the job: its coordinator's address, the pid of one of its processes, or of its launcher (default: the "
        "only job of this user on this host)",
    )
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds of a view (default: 2)")
    parser.add_argument("--once", action="store_true", help="one view, then end")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each view")


def run(arguments: argparse.Namespace) -> int:
    """Show views until Ctrl-C or the job's end. Raises JaxringError where there is no job."""
    if not arguments.interval > 0:
        raise JaxringError(f"--interval {arguments.interval:g}: give seconds above 0.")
    before, begin = _look(arguments.job)
    if not before:
        which = f"process of job {arguments.job}" if arguments.job else "job of this user"
        raise JaxringError(f"There is no {which} on this host whose record can be read.")
    from jaxring.trace.live import view

    with _screen(arguments) as show:
        while True:
            time.sleep(arguments.interval)
            after, end = _look(arguments.job or before[0].job())
            if not after:
                print("The job has ended.", file=sys.stderr)
                return 0
            flights = [each.flight for each in sorted(after, key=lambda each: (each.flight.process, each.pid))]
            show(view(after[0].job(), [each.flight for each in before], flights, begin, end))
            if arguments.once:
                return 0
            before, begin = after, end


def _look(job: str | None) -> tuple[list[Living], int]:
    """The records of the job's processes, and the moment, in ns since 1970."""
    from jaxring.trace import jobs

    return jobs.look(job), time.time_ns()


class _screen:  # noqa: N801
    """What a view is shown by: lines of JSON, tables one after the other, or a screen that is drawn again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._json = arguments.json
        self._live: Any = None
        if not arguments.json and not arguments.once and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(screen=True, auto_refresh=False)

    def __enter__(self) -> Any:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, view: View) -> None:
        from jaxring.cli import tables

        if self._json:
            print(json.dumps(view.as_json()), flush=True)
        elif self._live is not None:
            from rich.console import Group

            self._live.update(Group(*_tables(view)), refresh=True)
        else:
            out = tables.console()
            for table in _tables(view):
                out.print(table)
            sys.stdout.flush()


def _tables(view: View) -> list[Any]:
    from jaxring.cli.tables import table

    processes = [
        (
            each.name,
            each.pid,
            f"{each.per_second:.1f}",
            f"{100 * each.in_collectives:.0f} %",
            f"{each.waited_us:.0f}",
            f"{each.late_us:.0f}",
            f"{100 * each.last:.0f} %",
            f"{each.running} for {each.running_s:.1f} s" if each.running else "",
        )
        for each in view.processes
    ]
    calls = [
        (
            each.what,
            shown(each.nbytes),
            each.way,
            f"{each.per_second:.1f}",
            f"{each.us:.0f}",
            f"{each.busbw:.2f}",
            f"{each.latest}: {100 * each.latest_share:.0f} %" if each.latest else "",
        )
        for each in view.calls
    ]
    heads = ("process", "pid", "ops/s", "in them", "waits us", "late us", "last", "runs")
    title = f"{view.job}, {view.seconds:.1f} s"
    return [
        table(title, heads, processes),
        table("calls", ("call", "bytes", "way", "1/s", "us", "busbw GB/s", "comes last"), calls),
    ]
