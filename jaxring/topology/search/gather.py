"""All-gather, reduce-scatter and broadcast by trees that reach ForestColl's bound.

Each rank's data goes down trees of its own, which all ranks' trees share the links with; every rank gets the same rate.
The trees are packed by a linear program whose cheapest shapes are minimal arborescences, one for each root. A
reduce-scatter is an all-gather backwards: its trees are those of the fabric with every link turned round.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from jaxring.topology.search.arborescence import cheapest
from jaxring.topology.search.bound import Bound, bound, turned
from jaxring.topology.search.packing import Column, Offer, pack
from jaxring.topology.search.shares import apportion
from jaxring.topology.search.trees import Tree
from jaxring.topology.search.ways import Loads, Ways

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from jaxring.topology.fabric import Fabric

STEPS = 60
MOST = 16
_FIRST = 6  # trees of each root to begin with
Parents = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Gathering:
    """``trees``: of all roots. ``rate``: GB/s of each root's data. ``limit``: no trees have a higher rate; ``proven``:
    these have it. ``links`` of a tree are indices into the fabric's."""

    collective: str
    fabric: Fabric = dataclasses.field(repr=False)
    trees: tuple[Tree, ...]
    rate: float
    bound: Bound
    limit: float
    proven: bool
    steps: int

    @property
    def bus(self) -> float:
        """The bus bandwidth, as nccl-tests count it."""
        return self.rate if self.collective == "broadcast" else self.rate * (len(self.fabric.ranks) - 1)

    @property
    def share(self) -> float:
        """What part of the bound they attain."""
        return self.bus / float(self.bound.bus)


def search(
    fabric: Fabric, collective: str = "all_gather", root: int = 0, steps: int = STEPS, enough: float = 1.0
) -> Gathering:
    """Trees for a collective of all ranks of a fabric; `root` is a broadcast's.

    Raises ValueError for another collective, fewer than two ranks, and ranks that no path joins.
    """
    if collective not in ("all_gather", "reduce_scatter", "broadcast"):
        raise ValueError(f"trees gather, scatter or broadcast, and do not {collective!r}")
    certificate = bound(fabric, collective, root)
    if not certificate.bus:
        raise ValueError("nothing joins some of the ranks")
    roots = [root] if collective == "broadcast" else list(range(len(fabric.ranks)))
    forest = _Forest(turned(fabric) if collective == "reduce_scatter" else fabric, roots)
    limit = float(certificate.algorithm) / len(roots)
    packing = pack(forest.capacity, forest.start(), forest.offer, limit, steps, enough, groups=len(roots))
    trees = tuple(Tree(column.shape, share, column.links) for column, share in packing.shares)
    rest = (certificate, min(limit, packing.limit), packing.proven, packing.steps)
    return Gathering(collective, fabric, trees, packing.rate, *rest)


class _Forest:
    """Minimal arborescences from each root."""

    def __init__(self, fabric: Fabric, roots: Sequence[int]) -> None:
        self.ways = Ways(fabric)
        self.capacity = self.ways.capacity
        self.roots = roots

    def start(self) -> list[Column[Parents]]:
        """A few trees of each root, each clear of the links that those before it fill most."""
        chance = np.random.default_rng(0)
        loads = Loads(self.capacity)
        columns = []
        for _ in range(_FIRST):
            for group, root in enumerate(self.roots):
                self.ways.price(loads.prices())
                column, _ = self._tree(group, root, self.ways.cost * chance.uniform(1, 1.2, self.ways.cost.shape))
                loads.add(column.links)
                columns.append(column)
        return columns

    def offer(self, prices: npt.NDArray[np.float64]) -> Offer[Parents]:
        """The cheapest tree of each root."""
        self.ways.price(prices)
        found = [self._tree(group, root, self.ways.cost) for group, root in enumerate(self.roots)]
        least = sum(float(prices[list(column.links)].sum()) for column, _ in found)
        return Offer([column for column, _ in found], least * (1 - 1e-9))

    def _tree(self, group: int, root: int, costs: npt.NDArray[np.float64]) -> tuple[Column[Parents], Parents]:
        parents = tuple(cheapest(costs, root))
        links = [link for rank, parent in enumerate(parents) if parent >= 0 for link in self.ways.way(parent, rank)]
        return Column(parents, tuple(links), group), parents


def equal_parts(found: Gathering, most: int = MOST, enough: float = 0.97) -> list[list[Tree]]:
    """For each root as many trees, at most so many, one for each equal part of its data.

    The fewest that have `enough` of what was found, otherwise those that have most.
    """
    of_root: dict[int, list[Tree]] = collections.defaultdict(list)
    for tree in found.trees:
        of_root[tree.parents.index(-1)].append(tree)
    best: list[list[Tree]] = []
    rate = 0.0
    for count in range(1, most + 1):
        made = []
        for _, trees in sorted(of_root.items()):
            parts = apportion([tree.gigabytes for tree in trees], count)
            made.append([tree for tree, times in zip(trees, parts, strict=True) for _ in range(times)])
        used = collections.Counter(link for trees in made for tree in trees for link in tree.links)
        speed = min(found.fabric.links[link].gigabytes / times for link, times in used.items())
        if count * speed > rate * (1 + 1e-6):
            rate = count * speed
            best = [[dataclasses.replace(tree, gigabytes=speed) for tree in trees] for trees in made]
            if rate >= enough * found.rate:
                break
    return best
