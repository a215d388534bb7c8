"""All-reduce by trees: spanning trees of the ranks that carry most together, where rings do not reach the bound.

Each tree reduces its part of the data towards its root and spreads the result back, so that an edge of the tree takes
both directions of the links on its way. Trees are packed like rings, with the minimal spanning tree at the links'
prices as the cheapest shape: what is found is optimal among all trees, by whatever way the data of an edge goes.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from jaxring.topology.search.bound import Bound, bound
from jaxring.topology.search.packing import Column, Offer, Packing, pack
from jaxring.topology.search.shares import apportion
from jaxring.topology.search.ways import Loads, Ways

if TYPE_CHECKING:
    import numpy.typing as npt

    from jaxring.topology.fabric import Fabric

STEPS = 60
MOST = 64
_FIRST = 48
_NOISE = 1.2


@dataclasses.dataclass(frozen=True)
class Tree:
    """``parents``: each rank's parent in the tree, -1 for the root; ``gigabytes``: GB/s of data that it reduces.

    ``links``: indices of the links that its edges take, both ways, each as often as it is taken.
    """

    parents: tuple[int, ...]
    gigabytes: float
    links: tuple[int, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Trees:
    """What was found. ``limit``: GB/s that no set of trees exceeds; ``proven``: these have as much."""

    fabric: Fabric = dataclasses.field(repr=False)
    trees: tuple[Tree, ...]
    bound: Bound
    limit: float
    proven: bool
    steps: int

    @property
    def total(self) -> float:
        """GB/s of all-reduced data (nccl-tests' algbw)."""
        return sum(tree.gigabytes for tree in self.trees)

    @property
    def bus(self) -> float:
        """The same as bus bandwidth, 2 (n - 1) / n times as much."""
        ranks = len(self.trees[0].parents)
        return self.total * 2 * (ranks - 1) / ranks

    @property
    def share(self) -> float:
        """What part of the bound they attain."""
        return self.total / float(self.bound.algorithm)


def search(fabric: Fabric, steps: int = STEPS, enough: float = 1.0) -> Trees:
    """Trees over all ranks of a fabric; the search ends with `enough` of the bound, or when its steps are taken.

    Raises ValueError for fewer than two ranks, and for ranks that no path joins.
    """
    certificate = bound(fabric, "all_reduce")
    if not certificate.bus:
        raise ValueError("nothing joins some of the ranks")
    spanning = _Spanning(fabric)
    limit = float(certificate.algorithm)
    packing = pack(spanning.capacity, spanning.start(), spanning.offer, limit, steps, enough)
    return _result(fabric, packing, certificate, limit)


def _result(fabric: Fabric, packing: Packing[Edges], certificate: Bound, limit: float) -> Trees:
    count = len(fabric.ranks)
    trees = tuple(Tree(rooted(column.shape, count), share, column.links) for column, share in packing.shares)
    return Trees(fabric, trees, certificate, min(limit, packing.limit), packing.proven, packing.steps)


def equal_parts(found: Trees, most: int = MOST, enough: float = 0.97) -> list[Tree]:
    """Trees for equal parts of the data, at most so many, some of them alike: what a schedule is made of.

    The fewest that have `enough` of what was found, otherwise those that have most. Their GB/s are what each has when
    all are under way.
    """
    best: list[Tree] = []
    for count in range(1, most + 1):
        copies = apportion([tree.gigabytes for tree in found.trees], count)
        used: collections.Counter[int] = collections.Counter()
        for tree, times in zip(found.trees, copies, strict=True):
            for link in tree.links if times else ():
                used[link] += times
        speed = min(found.fabric.links[link].gigabytes / times for link, times in used.items())
        if not best or count * speed > len(best) * best[0].gigabytes * (1 + 1e-6):
            best = [
                dataclasses.replace(tree, gigabytes=speed)
                for tree, times in zip(found.trees, copies, strict=True)
                for _ in range(times)
            ]
            if count * speed >= enough * found.total:
                break
    return best


Edges = tuple[tuple[int, int], ...]


class _Spanning:
    """Minimal spanning trees, each edge by the cheapest ways there and back."""

    def __init__(self, fabric: Fabric) -> None:
        self.ways = Ways(fabric)
        self.capacity = self.ways.capacity

    def start(self) -> list[Column[Edges]]:
        """Twice as many trees as there are ranks, up to a number that suffices.

        Each keeps clear of the links that those before it fill most. Edges differ a little at random, or all trees
        would be stars around the cheapest rank.
        """
        chance = np.random.default_rng(0)
        loads = Loads(self.capacity)
        columns: list[Column[Edges]] = []
        for _ in range(min(_FIRST, 2 * self.ways.count)):
            found = self._cheapest(loads.prices(), chance).columns
            for column in found:
                loads.add(column.links)
            columns += found
        return columns

    def offer(self, prices: npt.NDArray[np.float64]) -> Offer[Edges]:
        """The minimal spanning tree."""
        return self._cheapest(prices, None)

    def _cheapest(self, prices: npt.NDArray[np.float64], chance: np.random.Generator | None) -> Offer[Edges]:
        self.ways.price(prices)
        both = self.ways.cost + self.ways.cost.T
        if chance is not None:
            noise = chance.uniform(1, _NOISE, both.shape)
            both = both * (noise + noise.T)
        edges, cost = _spanning(both)
        if not np.isfinite(cost):
            return Offer([], 0.0)
        both_ways = [pair for one, other in edges for pair in ((one, other), (other, one))]
        links = [link for start, end in both_ways for link in self.ways.way(start, end)]
        least = float(prices[links].sum())
        return Offer([Column(tuple(sorted(edges)), tuple(links))], least * (1 - 1e-9))


def _spanning(costs: npt.NDArray[np.float64]) -> tuple[list[tuple[int, int]], float]:
    """The minimal spanning tree of a full graph (Prim): its edges and their sum."""
    count = len(costs)
    inside = np.zeros(count, dtype=bool)
    inside[0] = True
    best, via = costs[0].copy(), np.zeros(count, dtype=np.int64)
    best[0] = np.inf
    edges, total = [], 0.0
    for _ in range(count - 1):
        at = int(best.argmin())
        total += float(best[at])
        edges.append((min(at, int(via[at])), max(at, int(via[at]))))
        inside[at] = True
        nearer = (costs[at] < best) & ~inside
        best[nearer], via[nearer] = costs[at][nearer], at
        best[at] = np.inf
    return edges, total


def rooted(edges: Edges, count: int) -> tuple[int, ...]:
    """The parents of a tree of these edges, with its root where it is least deep: the middle of a longest path."""
    near: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)

    def walk(start: int) -> tuple[list[int], int]:
        """The parents as seen from there, and the rank that is farthest."""
        parents = [-1] * count
        row = [start]
        for at in row:
            for other in near[at]:
                if other != parents[at]:
                    parents[other] = at
                    row.append(other)
        return parents, row[-1]

    parents, at = walk(walk(0)[1])
    path = [at]
    while parents[at] >= 0:
        at = parents[at]
        path.append(at)
    return tuple(walk(path[len(path) // 2])[0])
