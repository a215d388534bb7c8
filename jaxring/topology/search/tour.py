"""The cheapest tour through some places, where going is not as dear as coming back (asymmetric travelling salesman)."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

# Beyond this, dynamic programming over all subsets (Held and Karp) gives way to improving tours.
EXACT = 12
_STARTS = 4

Costs = npt.NDArray[np.float64]


def cheapest(costs: Costs, seed: int = 0) -> tuple[list[int], float, bool]:
    """A tour from place 0, its cost, and whether no tour is cheaper. ``costs[i, j]``: from i to j, finite."""
    count = len(costs)
    if count <= EXACT:
        tour = _held_karp(costs) if count > 2 else list(range(count))
        return tour, length(costs, tour), True
    chance = random.Random(seed)
    starts = [0, *(chance.randrange(count) for _ in range(_STARTS - 1))]
    tours = [_improved(costs, _nearest(costs, start)) for start in starts]
    best = min(tours, key=lambda tour: length(costs, tour))
    at = best.index(0)
    best = best[at:] + best[:at]
    return best, length(costs, best), False


def length(costs: Costs, tour: list[int]) -> float:
    """What a tour costs, with the way back."""
    return float(costs[tour, tour[1:] + tour[:1]].sum())


def _held_karp(costs: Costs) -> list[int]:
    """Over sets of places other than 0: the cheapest path from 0 through a set to each of its places."""
    others = len(costs) - 1
    inner = costs[1:, 1:]
    best = np.full((1 << others, others), np.inf)
    came = np.zeros((1 << others, others), dtype=np.int64)
    for place in range(others):
        best[1 << place, place] = costs[0, place + 1]
    places = np.arange(others)
    for chosen in range(1, (1 << others) - 1):
        more = places[(chosen >> places) & 1 == 0]
        through = best[chosen][:, None] + inner[:, more]
        at = through.argmin(axis=0)
        best[chosen | 1 << more, more] = through[at, np.arange(len(more))]
        came[chosen | 1 << more, more] = at
    chosen = (1 << others) - 1
    last = int((best[chosen] + costs[1:, 0]).argmin())
    tour = []
    while chosen:
        tour.append(last + 1)
        chosen, last = chosen & ~(1 << last), int(came[chosen, last])
    return [0, *reversed(tour)]


def _nearest(costs: Costs, start: int) -> list[int]:
    """Always on to the cheapest place that has not been visited."""
    tour, left = [start], set(range(len(costs))) - {start}
    while left:
        here = tour[-1]
        tour.append(min(left, key=lambda place: (costs[here, place], place)))
        left.remove(tour[-1])
    return tour


def _improved(costs: Costs, tour: list[int]) -> list[int]:
    """Moves up to three neighbours to where they are cheaper (or-opt), until that does not help or goes on too long."""
    count = len(tour)
    for _ in range(count):
        gained = False
        for size in (1, 2, 3):
            for at in range(count):
                turned = tour[at:] + tour[:at]
                moved, rest = turned[:size], np.array(turned[size:])
                after = np.roll(rest, -1)
                closed = costs[rest[-1], rest[0]] - costs[rest[-1], moved[0]] - costs[moved[-1], rest[0]]
                opened = costs[rest, moved[0]] + costs[moved[-1], after] - costs[rest, after]
                opened[-1] = np.inf  # where it came from
                best = int(opened.argmin())
                if closed + opened[best] < -1e-12:
                    tour = [*rest[: best + 1].tolist(), *moved, *rest[best + 1 :].tolist()]
                    gained = True
        if not gained:
            break
    return tour
