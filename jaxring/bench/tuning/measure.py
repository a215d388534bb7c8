"""Times the candidates of every cell of a layout, which take turns."""

from __future__ import annotations

import collections
import random
import statistics
from typing import TYPE_CHECKING

from jaxring.bench.fleet import Crew
from jaxring.bench.peers import CALLS
from jaxring.bench.tuning.cell import cells
from jaxring.errors import JaxringError
from jaxring.plan.profile import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.bench.hosts import Hosts
    from jaxring.bench.tuning.cell import Cell, Layout, Own

# A batch lasts about this long, and each candidate has so many of them, in as many turns. With 7 turns of 1 ms, 77% of
# the choices were within 10% of the best on 2 cores, with 21 of 2 ms 87%, with 41 89%.
BATCH_S = 2e-3
TURNS = 41
MOST_CALLS = 64

Times = dict["Cell", list[float]]


def measure(
    layout: Layout, sizes: Sequence[int], hosts: Hosts | None, say: Callable[[int, int], object], own: Own
) -> tuple[Times, int]:
    """The median time in us of each candidate of each cell, and the processors that the layout's processes share.

    ``say`` is called with how many cells of how many are done. Raises JaxringError where the job fails or a result is
    wrong.
    """
    found: Times = {}
    with Crew(CALLS, layout.processes, layout.devices, {}, hosts) as crew:
        masks = crew.ask("processors")
        processors = 0
        if layout.hosts == 1:
            for mask in masks:
                processors |= mask
        shared = processors.bit_count()
        crew.ask("register", (own.modules,))
        todo = cells(layout, sizes, shared, own)
        for number, cell in enumerate(todo):
            say(number, len(todo))
            found[cell] = _times(crew, cell, layout)
    return found, shared


def _times(crew: Crew, cell: Cell, layout: Layout) -> list[float]:
    crew.ask("prepare", cell)
    batches = []
    for candidate, names in enumerate(cell.candidates):
        crew.ask("times", (candidate, 1, 1))  # plans and connects
        if wrong := sum(crew.ask("wrong")):
            what = f"{cell.collective} of {cell.nbytes} bytes by {'/'.join(names)} on {layout}"
            raise JaxringError(f"{wrong} elements are wrong: {what}.")
        each = max(statistics.median(times) for times in crew.ask("times", (candidate, 3, 1)))
        batches.append(max(1, min(MOST_CALLS, round(BATCH_S / max(each, 1e-7)))))
    times: dict[int, list[float]] = collections.defaultdict(list)
    order = list(range(len(cell.candidates)))
    shuffle = random.Random(cell.nbytes).shuffle
    for _ in range(TURNS):
        shuffle(order)
        for candidate in order:
            # The first call of a turn meets the caches as another candidate has left them.
            answers = crew.ask("times", (candidate, 2, batches[candidate]))
            times[candidate].append(max(answer[-1] for answer in answers))
    return [round(1e6 * statistics.median(times[candidate]), 3) for candidate in sorted(times)]


def tables(layout: Layout, times: Times) -> list[Measured]:
    """The same as a profile keeps it: for each candidate its times over sizes."""
    found: dict[tuple[str, str, str], dict[int, float]] = collections.defaultdict(dict)
    for cell, each in times.items():
        for (algorithm, protocol), us in zip(cell.candidates, each, strict=True):
            found[cell.collective, algorithm, protocol][cell.nbytes] = us
    return [
        Measured(
            *names,
            layout.processes,
            layout.devices,
            layout.hosts,
            tuple(sorted(by_size)),
            tuple(by_size[size] for size in sorted(by_size)),
        )
        for names, by_size in found.items()
    ]
