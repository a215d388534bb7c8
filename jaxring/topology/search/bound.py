"""The most bandwidth that a fabric can give a collective, with the cut that proves it: a certificate.

All-gather and reduce-scatter have ForestColl's bound (Zhao et al., arXiv 2402.06787): of every set of vertices that
lacks a rank, the data of the ranks inside has to leave by the links that lead out. The worst set is found by maximal
flows: a rate is possible if and only if every rank can receive that rate of every rank. Where it is not, the minimal
cut names a set that is worse than all before, and its rate is the next one to try. This ends with the exact optimum,
which a schedule of trees attains; before that each rate is a bound already.

Broadcast: the least maximal flow from the root (Edmonds). All-reduce: whatever the order, an element needs one message
fewer than there are groups to gather it from any groups of ranks, and as many to spread it again; so the links into the
groups of a partition carry 2 (groups - 1) times the data. The worst partition is found by Dilworth truncation of the
cuts, which takes a minimal cut for each rank.

Speeds count in whole kB/s, so that all is exact.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import TYPE_CHECKING

from jaxring.topology.fabric import Fabric, Link
from jaxring.topology.search.flow import Network, scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
_UNITS = 10**6  # in a GB/s


@dataclasses.dataclass(frozen=True)
class Bound:
    """``algorithm``: GB/s of the collective's data (nccl-tests' algbw), ``bus``: its busbw. Both are exact.

    ``groups``: the sets of vertices whose links limit it; ``links``: those links, as indices into the fabric's.
    ``proven``: no better bound exists of this kind; False where the steps ran out before that was known.
    """

    collective: str
    algorithm: Fraction
    bus: Fraction
    groups: tuple[frozenset[int], ...]
    links: tuple[int, ...]
    proven: bool


def bound(
    fabric: Fabric, collective: str, root: int = 0, steps: int | None = None, ranks: Sequence[int] | None = None
) -> Bound:
    """The bound of a collective over the ranks of a fabric, or over those vertices only that `ranks` names.

    `root` is a number among these ranks; `steps` limits the flows sought. Raises ValueError for another collective, and
    for fewer than two ranks.
    """
    ranks = fabric.ranks if ranks is None else ranks
    count = len(ranks)
    if count < 2:
        raise ValueError(f"a bound is between ranks, and this fabric has {count}")
    budget = _Steps(steps)
    if collective in ("all_gather", "reduce_scatter"):
        way = fabric if collective == "all_gather" else turned(fabric)
        rate, inside = _all_gather(way, ranks, budget)
        links = _leaving(way, inside)
        return Bound(collective, rate * count, rate * (count - 1), (inside,), links, not budget.over)
    if collective == "broadcast":
        rate, inside = _broadcast(fabric, ranks, ranks[root], budget)
        return Bound(collective, rate, rate, (inside,), _leaving(fabric, inside), not budget.over)
    if collective == "all_reduce":
        found = [(*_all_reduce(fabric, ranks, budget), fabric)]
        if not _symmetric(fabric):
            found.append((*_all_reduce(turned(fabric), ranks, budget), turned(fabric)))
        rate, groups, way = min(found, key=lambda each: each[0])
        backwards = turned(way)
        links = tuple(sorted({link for group in groups for link in _leaving(backwards, group)}))
        return Bound(collective, rate, rate * 2 * (count - 1) / count, groups, links, not budget.over)
    raise ValueError(f"there is no bound of {collective!r}; there are those of {', '.join(COLLECTIVES)}")


class _Steps:
    """Counts flows."""

    def __init__(self, limit: int | None) -> None:
        self.limit, self.done = limit, 0
        self.over = False

    def take(self) -> bool:
        """Whether there is a step left, which is taken then."""
        if self.limit is not None and self.done >= self.limit:
            self.over = True
            return False
        self.done += 1
        return True


def _units(link: Link) -> int:
    return max(1, round(link.gigabytes * _UNITS))


def turned(fabric: Fabric) -> Fabric:
    """Every link the other way; their indices stay."""
    return Fabric(
        fabric.vertices,
        tuple(dataclasses.replace(link, source=link.target, target=link.source) for link in fabric.links),
    )


def _symmetric(fabric: Fabric) -> bool:
    balance: dict[tuple[int, int], int] = {}
    for link in fabric.links:
        ends, sign = ((link.source, link.target), 1) if link.source < link.target else ((link.target, link.source), -1)
        balance[ends] = balance.get(ends, 0) + sign * _units(link)
    return not any(balance.values())


def _leaving(fabric: Fabric, inside: Iterable[int]) -> tuple[int, ...]:
    within = set(inside)
    return tuple(i for i, link in enumerate(fabric.links) if link.source in within and link.target not in within)


def _network(fabric: Fabric) -> tuple[Network, list[int]]:
    """The fabric's links as a network, with one vertex more for a source, and their capacities."""
    network = Network(len(fabric.vertices) + 2)
    base = [_units(link) for link in fabric.links]
    for link, capacity in zip(fabric.links, base, strict=True):
        network.add(link.source, link.target, capacity)
    return network, base


def _all_gather(fabric: Fabric, ranks: Sequence[int], budget: _Steps) -> tuple[Fraction, frozenset[int]]:
    """GB/s that each rank can send to all others at once, and the set of vertices that cannot send more."""
    network, base = _network(fabric)
    source = len(fabric.vertices)
    arcs = [network.add(source, rank, 0) for rank in ranks]
    everyone = frozenset(range(source))

    def rate_of(inside: frozenset[int]) -> Fraction:
        out = sum(base[link] for link in _leaving(fabric, inside))
        return Fraction(out, sum(rank in inside for rank in ranks))

    # The sets that usually decide: all but one rank, and one rank alone.
    candidates = [everyone - {rank} for rank in ranks] + [frozenset({rank}) for rank in ranks]
    worst = min(candidates, key=rate_of)
    rate = rate_of(worst)
    for sink in ranks:
        while budget.take():
            scaled(network, rate.denominator, base)
            for arc in arcs:
                network.capacity[arc] = rate.numerator
            need = rate.numerator * len(ranks)
            if network.flow(source, sink, need) >= need:
                break
            worst = network.reached(source) - {source}
            rate = rate_of(worst)
            if not rate:
                return Fraction(0), worst
    return rate / _UNITS, worst


def _broadcast(fabric: Fabric, ranks: Sequence[int], root: int, budget: _Steps) -> tuple[Fraction, frozenset[int]]:
    network, base = _network(fabric)
    least = sum(base[link] for link in fabric.leaving[root])
    inside = frozenset({root})
    for sink in ranks:
        if sink != root and budget.take():
            found = network.flow(root, sink, least)
            if found < least:
                least, inside = found, network.reached(root)
    return Fraction(least, _UNITS), inside


def _all_reduce(fabric: Fabric, ranks: Sequence[int], budget: _Steps) -> tuple[Fraction, tuple[frozenset[int], ...]]:
    """GB/s of an all-reduce's data, and the groups of the worst partition of the ranks."""
    cuts = _Cuts(fabric, ranks)
    groups = [frozenset({rank}) for rank in ranks]
    into = sum(cuts.around(group)[0] for group in groups)
    # Twice the rate, in units, by this partition.
    rate = Fraction(into, len(groups) - 1)
    sets = [cuts.around(group)[1] for group in groups]
    while rate and budget.take():
        better = cuts.partition(rate)
        if better is None or len(better) < 2:
            break
        around = [cuts.around(group) for group in better]
        found = Fraction(sum(size for size, _ in around), len(better) - 1)
        if found >= rate:
            break
        rate, sets = found, [inside for _, inside in around]
    return rate / 2 / _UNITS, tuple(sets)


class _Cuts:
    """Minimal cuts around groups of ranks, by what may enter."""

    def __init__(self, fabric: Fabric, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        self.network, self.base = _network(fabric)
        self.source, self.sink = len(fabric.vertices), len(fabric.vertices) + 1
        self.excluded = {rank: self.network.add(self.source, rank, 0) for rank in self.ranks}
        self.included = {rank: self.network.add(rank, self.sink, 0) for rank in self.ranks}
        # More than all links together.
        self.infinite = sum(self.base) + 1

    def around(self, group: Sequence[int] | frozenset[int]) -> tuple[int, frozenset[int]]:
        """The least capacity into a set of vertices that has just these ranks, and that set."""
        scaled(self.network, 1, self.base)
        for rank in self.ranks:
            self.network.capacity[self.excluded[rank]] = 0 if rank in group else self.infinite
            self.network.capacity[self.included[rank]] = self.infinite if rank in group else 0
        size = self.network.flow(self.source, self.sink)
        outside = self.network.reached(self.source)
        return size, frozenset(v for v in range(self.source) if v not in outside)

    def partition(self, rate: Fraction) -> list[frozenset[int]] | None:
        """A partition whose cuts sum up to less than `rate` for each group but one; None where there is none.

        Rank by rank, a value is the least of (cut of a group - rate - values of its other ranks) over the groups that
        contain it among those seen. The sum of all values is the least over all partitions.
        """
        scale = rate.denominator
        scaled(self.network, scale, self.base)
        infinite = self.infinite * scale
        values: dict[int, int] = {}
        blocks: list[set[int]] = []
        capacity = self.network.capacity
        for rank in self.ranks:
            capacity[self.excluded[rank]], capacity[self.included[rank]] = infinite, 0
        for rank in self.ranks:
            capacity[self.excluded[rank]], capacity[self.included[rank]] = 0, infinite
            for other, value in values.items():
                capacity[self.excluded[other]], capacity[self.included[other]] = max(0, -value), max(0, value)
            cut = self.network.flow(self.source, self.sink)
            outside = self.network.reached(self.source)
            values[rank] = cut - sum(max(0, value) for value in values.values()) - rate.numerator
            block = {other for other in values if other not in outside}
            merged = block.union(*(each for each in blocks if each & block))
            blocks = [each for each in blocks if not each & block] + [merged]
        if sum(values.values()) + rate.numerator >= 0:
            return None
        return [frozenset(block) for block in blocks]
