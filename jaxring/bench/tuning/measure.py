"""Times the candidates of every cell of a layout, which take turns."""

from __future__ import annotations

import collections
import functools
import operator
import random
import statistics
import time
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

# A batch lasts about this long, and each candidate that may be the best has so many of them, in as many turns.
BATCH_S = 2e-3
TURNS = 61
MOST_CALLS = 256
# After so long a cell is measured no further, once each candidate has had LEAST_TURNS; where processes take turns on
# the CPUs, after as many times as long as there are processes to a CPU.
CELL_S = 0.27
LEAST_TURNS = 5
# A candidate has no more turns once it is clear that it takes so much longer than the best one: three quarters of its
# batches do, after FIRST_TURNS of them.
BEHIND = 1.1
FIRST_TURNS = 9
# A call as long as this meets the caches as it leaves them itself, whichever candidate came before.
LONG_S = 20e-3

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
        processors = functools.reduce(operator.or_, masks)
        shared = processors.bit_count() if layout.hosts == 1 else 0
        cpus = [cpu for cpu in range(processors.bit_length()) if processors >> cpu & 1]
        crew.ask("register", (own.modules,))
        todo = cells(layout, sizes, shared, own)
        for number, cell in enumerate(todo):
            say(number, len(todo))
            found[cell] = _times(crew, cell, layout, cpus)
    return found, shared


def _times(crew: Crew, cell: Cell, layout: Layout, cpus: Sequence[int]) -> list[float]:
    crew.ask("prepare", cell)
    least = float("inf")
    for candidate, names in enumerate(cell.candidates):
        crew.ask("times", (candidate, 1, 1))  # plans and connects
        if wrong := sum(crew.ask("wrong")):
            what = f"{cell.collective} of {cell.nbytes} bytes by {'/'.join(names)} on {layout}"
            raise JaxringError(f"{wrong} elements are wrong: {what}.")
        least = min(least, max(min(times) for times in crew.ask("times", (candidate, 3, 1))))
    # The same for all, since the ranks do not begin a batch at one moment: of few calls each would seem to take longer.
    batch = max(1, min(MOST_CALLS, round(BATCH_S / max(least, 1e-7))))
    times: list[list[float]] = [[] for _ in cell.candidates]
    left = list(range(len(times)))
    draw = random.Random(cell.nbytes)
    crowd = max(1.0, layout.processes / len(cpus))
    places = [*cpus] * -(-layout.ranks // len(cpus))
    begun = time.monotonic()
    for turn in range(1, TURNS + 1):
        draw.shuffle(left)
        # Of more processes than CPUs it is chance which ones share a CPU, and may stay so as long as the job lives.
        where = draw.sample(places, layout.ranks) if crowd > 1 else []
        for candidate in left:
            # The first batch of a turn meets the caches as another candidate has left them.
            answers = crew.ask("times", (candidate, 1 if least > LONG_S else 2, batch, where))
            times[candidate].append(max(answer[-1] for answer in answers))
        late = time.monotonic() - begun > CELL_S * crowd
        if late and turn >= LEAST_TURNS:
            break
        if late or turn >= FIRST_TURNS:
            left = contenders(times, left)
            if len(left) == 1:
                break
    return [round(1e6 * statistics.median(each), 3) for each in times]


def contenders(times: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    """Those of the candidates ``left`` that may still be the best, by the ``times`` of every candidate's batches."""
    least = BEHIND * min(statistics.median(each) for each in times)
    return [candidate for candidate in left if sorted(times[candidate])[len(times[candidate]) // 4] <= least]


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
