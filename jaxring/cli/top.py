"""Look at a job while it runs: what each process does, what each call takes, and who comes late.

    jaxring top                   shows this user's job on this host, again every two seconds, until q or Ctrl-C
    jaxring top --once --json     looks for two seconds and prints what it saw
    jaxring top --share FILE      writes what another host needs to look at the job
    jaxring top --from FILE       shows that job, all its processes, from anywhere

Reads the flight records in the memory of the job's processes on this host, which only their user may: the job does
nothing for it. With --from the processes are asked over the network, on the ports on which they listen to each other.
FILE has a key with which one can look at the job and do nothing else; it holds until the job is rebuilt or ends. Keep
it as private as the names of the program's files and lines.

On a terminal it takes the whole screen, in which arrow keys, page keys, Home and End scroll.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JaxringError
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from jaxring.cli.screen import Screen
    from jaxring.trace.flight import Flight
    from jaxring.trace.live import View

    # The job, its records in order, the moment, in ns since 1970, and sentences about what has not answered.
    Look = Callable[[], tuple[str, list[Flight], int, list[str]]]

HELP = "show what a running job does"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring top`."""
    parser.add_argument(
        "--job",
        metavar="JOB",
        help="the job: its coordinator's address, the pid of one of its processes, or of its launcher (default: the "
        "only job of this user on this host)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--share", type=pathlib.Path, metavar="FILE", help="write what another host needs, and end")
    where.add_argument("--from", dest="source", type=pathlib.Path, metavar="FILE", help="look at the job of this file")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds of a view (default: 2)")
    parser.add_argument("--once", action="store_true", help="one view, then end")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each view")


def run(arguments: argparse.Namespace) -> int:
    """Show views until q, Ctrl-C or the job's end. Raises JaxringError where there is no job."""
    if not arguments.interval > 0:
        raise JaxringError(f"--interval {arguments.interval:g}: give seconds above 0.")
    if arguments.share is not None:
        return _share(arguments.share, arguments.job)
    look = _here(arguments.job) if arguments.source is None else _there(arguments.source)
    job, before, begin, failed = look()
    from rich.text import Text

    from jaxring.trace.live import view

    with _screen(arguments) as screen:
        shown = _Shown(arguments.json, screen)
        if screen is not None:
            screen.show(Text(f"{job}: the first view takes {arguments.interval:g} s."))
        shown.say(failed)
        while shown.wait(arguments.interval):
            _, after, end, failed = look()
            shown.say(failed)
            if not after:
                shown.say(["The job has ended."])
                return 0
            shown.show(view(job, before, after, begin, end))
            if arguments.once:
                return 0
            before, begin = after, end
    return 0


def _here(job: str | None) -> Look:
    """What looks at the processes of this host. Raises JaxringError where there are none."""
    from jaxring.trace import jobs

    found = jobs.look(job)
    if not found:
        which = f"process of job {job}" if job else "job of this user"
        raise JaxringError(f"There is no {which} on this host whose record can be read.")
    name = found[0].job()

    def look() -> tuple[str, list[Flight], int, list[str]]:
        living = sorted((each.flight for each in jobs.look(job or name)), key=lambda each: (each.process, each.pid))
        return name, living, time.time_ns(), []

    return look


def _there(path: pathlib.Path) -> Look:
    """What looks at the processes of all hosts. Raises JaxringError where none answers."""
    from jaxring.trace.remote import Remote

    remote = Remote(path)

    def look() -> tuple[str, list[Flight], int, list[str]]:
        flights, now, failed = remote.look()
        return remote.job, flights, now, failed

    return look


def _share(path: pathlib.Path, job: str | None) -> int:
    from jaxring.runtime.reporting import viewing
    from jaxring.trace import jobs

    access = viewing.shared([each.pid for each in jobs.look(job)])
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JaxringError(f"Cannot make {path}: {error.strerror}.") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(access.encode())
    print(path)
    return 0


def _screen(arguments: argparse.Namespace) -> AbstractContextManager[Screen | None]:
    from jaxring.cli import screen

    on_screen = not arguments.json and not arguments.once and screen.possible()
    return screen.opened() if on_screen else contextlib.nullcontext()


class _Shown:
    """What views are shown by: lines of JSON, tables one after the other, or a terminal's whole screen."""

    def __init__(self, as_json: bool, screen: Screen | None = None) -> None:
        self._json, self._screen = as_json, screen
        self._said: set[str] = set()

    def wait(self, seconds: float) -> bool:
        """Passes the time. False where a key asks to end."""
        if self._screen is not None:
            return self._screen.wait(seconds)
        time.sleep(seconds)
        return True

    def say(self, sentences: Iterable[str]) -> None:
        """Each sentence once: to stderr, where there is a screen when it is gone."""
        for sentence in sentences:
            if sentence in self._said:
                continue
            self._said.add(sentence)
            if self._screen is not None:
                self._screen.say(sentence)
            else:
                print(sentence, file=sys.stderr)

    def show(self, view: View) -> None:
        """The view in place of the one before, or after it."""
        from jaxring.cli import tables

        if self._json:
            print(json.dumps(view.as_json()), flush=True)
        elif self._screen is not None:
            self._screen.show(*_tables(view))
        else:
            out = tables.console()
            for table in _tables(view):
                out.print(table)
            sys.stdout.flush()


def _tables(view: View) -> list[Any]:
    from rich.text import Text

    from jaxring.cli.tables import table

    processes = [
        (
            each.name,
            each.pid,
            f"{each.per_second:.1f}",
            f"{100 * each.in_collectives:.0f} %",
            f"{each.waited_us:.0f}",
            each.waits_for,
            f"{each.late_us:.0f}",
            f"{100 * each.last:.0f} %",
            f"{each.running} for {each.running_s:.1f} s" if each.running else f"({each.newest})" if each.newest else "",
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
    heads = ("process", "pid", "ops/s", "in them", "waits us", "for", "late us", "last", "runs (or ran)")
    title = f"{view.job}, {view.seconds:.1f} s"
    return [
        table(title, heads, processes),
        table("calls", ("call", "bytes", "way", "1/s", "us", "busbw GB/s", "comes last"), calls),
        *(Text(str(each)) for each in view.stragglers),
        *(
            Text(f"{each.name}: {each.detours} of {each.resumable} connections take another path than at first.")
            for each in view.processes
            if each.detours
        ),
    ]
