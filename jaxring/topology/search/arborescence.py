"""The cheapest arborescence: a tree of directed edges from a root to all others (Chu and Liu, Edmonds)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]


def cheapest(costs: Costs, root: int) -> list[int]:
    """Each vertex's parent, -1 for the root. ``costs[u, v]``: of the edge from u to v.

    Everyone takes the edge into it that is cheapest. Where these close a circle, the circle becomes one vertex, whose
    edges in cost what they add when they break it.
    """
    count = len(costs)
    costs = costs.copy()
    np.fill_diagonal(costs, np.inf)
    parents = costs.argmin(axis=0)
    parents[root] = -1
    circle = _circle(parents.tolist())
    if not circle:
        return [int(parent) for parent in parents]
    rest = [vertex for vertex in range(count) if vertex not in set(circle)]
    smaller = np.full((len(rest) + 1, len(rest) + 1), np.inf)
    smaller[:-1, :-1] = costs[np.ix_(rest, rest)]
    enter = costs[np.ix_(rest, circle)] - costs[parents[circle], circle]
    leave = costs[np.ix_(circle, rest)]
    smaller[:-1, -1], smaller[-1, :-1] = enter.min(axis=1), leave.min(axis=0)
    inner = cheapest(smaller, rest.index(root))
    found = [-1] * count
    for vertex in circle:
        found[vertex] = int(parents[vertex])
    for at, parent in enumerate(inner[:-1]):
        if parent >= 0:
            found[rest[at]] = rest[parent] if parent < len(rest) else circle[int(leave[:, at].argmin())]
    broken = circle[int(enter[inner[-1]].argmin())]
    found[broken] = rest[inner[-1]]
    return found


def _circle(parents: list[int]) -> list[int]:
    """Vertices that lead back to themselves; none where there are none."""
    done = [False] * len(parents)
    for start in range(len(parents)):
        path: dict[int, None] = {}
        at = start
        while at >= 0 and not done[at]:
            if at in path:
                row = list(path)
                return row[row.index(at) :]
            path[at] = None
            at = parents[at]
        for vertex in path:
            done[vertex] = True
    return []
