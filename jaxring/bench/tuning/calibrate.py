"""From measurements of several layouts to a profile."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import sys
from typing import TYPE_CHECKING

from jaxring.bench.hosts import Hosts
from jaxring.bench.tuning.fit import fitted
from jaxring.bench.tuning.measure import measure, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress, TaskID

    from jaxring.bench.tuning.cell import Layout, Own
    from jaxring.bench.tuning.measure import Times
    from jaxring.plan.profile import Profile

Measurements = list[tuple["Layout", "Times", int]]


def hosts_of(count: int, rate: str) -> contextlib.AbstractContextManager[Hosts | None]:
    """That many hosts as network namespaces, to be entered; this machine alone for one."""
    return Hosts(count, rate=rate) if count > 1 else contextlib.nullcontext()


def measure_all(layouts: Sequence[Layout], sizes: Sequence[int], hosts: Hosts | None, own: Own) -> Measurements:
    """Each layout, its times, and the processors that its processes share. A terminal shows the progress."""
    from rich.console import Console
    from rich.progress import Progress

    found = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for layout in layouts:
            bar = progress.add_task(str(layout), total=None)
            times, processors = measure(layout, sizes, hosts, functools.partial(_tell, progress, bar), own)
            found.append((layout, times, processors))
    return found


def _tell(progress: Progress, bar: TaskID, done: int, total: int) -> None:
    progress.update(bar, completed=done, total=total)


def calibrated(base: Profile, measured: Measurements) -> Profile:
    """``base`` with prices fitted to what was measured, and with these times in place of older ones of the layouts."""
    new = [each for layout, times, _ in measured for each in tables(layout, times)]
    layouts = {(each.domains, each.width, each.hosts) for each in new}
    kept = [each for each in base.measured if (each.domains, each.width, each.hosts) not in layouts]
    said = ", ".join(str(layout) for layout, _, _ in measured)
    source = f"jaxring tune of {said} on {dt.date.today()}"
    return dataclasses.replace(fitted(base, measured), source=source, measured=(*kept, *new))
