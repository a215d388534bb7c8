"""Finds a ring through hosts of which only some pairs are measured: N log N of them, not all N^2/2.

Each host is measured with those 1, 2, 4, ... places after it (up to eight hosts with all others), so that all hosts are
joined by measured pairs. A pair that is not measured counts as the worst hop of the best way between its hosts by
measured pairs: exact where costs come from a hierarchy (same switch, same rack, same room), whose levels hosts are
clustered by. The cheapest tour by these costs (asymmetric travelling salesman) names the pairs that matter: those of
its hops that are not measured yet are measured next. So every hop of the ring that is returned was measured. Where the
tour has hops that are much dearer than others, it is cut there into clusters, whose representatives are measured with
those of log N other clusters: two that are near each other become one. That goes on until nothing is left to ask, or
the pairs or rounds are used up.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import numpy as np

from jaxring.topology.search import tour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jaxring.topology.search.tour import Costs

Pair = tuple[int, int]

# So much dearer than it is an estimate counts, so that of tours that are nearly equal the one that is known wins.
_DOUBT = 1.1
# A ring has to be so much cheaper than that in the order of ranks, because times vary from one measurement to the next.
_GAIN = 0.9
# A hop is dear, and clusters end there, beyond so many times the cost of the cheapest tenth of the ring's hops.
_DEAR = 2.0
# Pairs in all, as multiples of N log2 N.
_MOST = 3
# Up to so many hosts all pairs are few more than those, and with them no ring that is cheaper is missed.
_ALL = 8


@dataclasses.dataclass(frozen=True)
class Found:
    """``order`` begins with host 0. ``cost`` is its ring's, ``before`` that of the ring 0, 1, 2, ...; ``pairs`` were
    measured, in ``rounds``."""

    order: tuple[int, ...]
    cost: float
    before: float
    pairs: int
    rounds: int

    @property
    def kept(self) -> bool:
        """Whether it is the order of ranks, because none was found that is much cheaper."""
        return self.order == tuple(range(len(self.order)))


def find(count: int, measure: Callable[[list[Pair]], dict[Pair, tuple[float, float]]]) -> Found:
    """The ring through hosts 0 to count - 1. ``measure`` gives the costs of both directions, a to b first, with a < b.

    At most 3 * count * ceil(log2 count) + count pairs are measured.
    """
    costs = np.full((count, count), np.inf)
    np.fill_diagonal(costs, 0.0)
    levels = max(0, (count - 1).bit_length())
    plain = list(range(count))
    best, cost = plain, np.inf
    apart = range(1, count) if count <= _ALL else [1 << level for level in range(levels)]
    wanted = _pairs((host, (host + places) % count) for places in apart for host in range(count))
    ring, pairs, rounds, chance = plain, 0, 0, random.Random(count)
    while wanted:
        for (a, b), (there, back) in measure(wanted).items():
            costs[a, b], costs[b, a] = there, back
        pairs, rounds = pairs + len(wanted), rounds + 1
        if (length := tour.length(costs, ring)) < cost:
            best, cost = ring, length
        left = _MOST * count * levels - pairs
        if rounds > 2 * levels or left <= 0:
            break
        ring, _, _ = tour.cheapest(_filled(costs))
        wanted = [(a, b) for a, b in _pairs(_hops(ring)) if np.isinf(costs[a, b])]
        if not wanted and (length := tour.length(costs, ring)) < cost:
            best, cost = ring, length
        more = _between_clusters(costs, ring, levels, chance)[: max(0, left - len(wanted))]
        wanted = sorted({*wanted, *more})
    before = tour.length(costs, plain)
    if cost > _GAIN * before:
        best, cost = plain, before
    return Found(tuple(best), float(cost), before, pairs, rounds)


def _hops(ring: list[int]) -> Iterable[Pair]:
    return zip(ring, ring[1:] + ring[:1], strict=True)


def _between_clusters(costs: Costs, ring: list[int], most: int, chance: random.Random) -> list[Pair]:
    """Pairs of clusters between which nothing is measured, up to ``most`` for each, by their representatives."""
    hops = [float(costs[hop]) for hop in _hops(ring)]
    dear = _DEAR * float(np.quantile(hops, 0.1, method="lower"))
    clusters: list[list[int]] = [[]]
    for host, cost in zip(ring, hops, strict=True):
        clusters[-1].append(host)
        if cost > dear:
            clusters.append([])
    last = clusters.pop()
    clusters[:1] = [last + cluster for cluster in clusters[:1]]  # the ring is closed
    found = []
    for at, cluster in enumerate(clusters):
        unknown = [other for other in clusters[at + 1 :] if np.isinf(costs[np.ix_(cluster, other)]).all()]
        chosen = chance.sample(unknown, min(most, len(unknown)))
        found += [(chance.choice(cluster), chance.choice(other)) for other in chosen]
    return _pairs(found)


def matchings(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The pairs in groups in which each host occurs at most once, so that a group's are measured at the same time."""
    groups: list[tuple[list[Pair], set[int]]] = []
    for pair in pairs:
        free = next((group for group in groups if not group[1].intersection(pair)), None)
        if free is None:
            free = ([], set())
            groups.append(free)
        free[0].append(pair)
        free[1].update(pair)
    return [group for group, _ in groups]


def _pairs(hops: Iterable[Pair]) -> list[Pair]:
    """Each pair once, the smaller number first."""
    return sorted({(min(hop), max(hop)) for hop in hops if hop[0] != hop[1]})


def _filled(costs: Costs) -> Costs:
    """With estimates where nothing was measured: the worst hop of the best way by measured pairs."""
    best = costs.copy()
    for through in range(len(best)):
        np.minimum(best, np.maximum(best[:, through, None], best[None, through, :]), out=best)
    return np.where(np.isinf(costs), best * _DOUBT, costs)
