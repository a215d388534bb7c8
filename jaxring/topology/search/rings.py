"""The rings of a machine's GPUs that carry most together, and what part that is of what the machine can do.

A job on one machine has closed rings. On several machines a ring enters each by one of its NICs, visits all GPUs, and
leaves by the same NIC, or by another one where that is allowed; such a chain is a tour, too, with the network as one
more place.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np

from jaxring.topology.routes import LEVELS, Route, Routes
from jaxring.topology.search import tour
from jaxring.topology.search.bound import Bound, bound
from jaxring.topology.search.packing import Column, Offer, pack
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import Wiring, cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

_FAR = 1e12  # the price of a hop that there is no way for
STEPS = 100


@dataclasses.dataclass(frozen=True)
class Ring:
    """``order``: GPUs, as positions in the machine's list; ``gigabytes``: GB/s. ``nics``: the ports, as positions in
    ``Wiring.nics``, by which it enters and leaves the machine; empty on a single machine."""

    order: tuple[int, ...]
    gigabytes: float
    nics: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rings:
    """What was found. ``limit``: GB/s that no set of rings exceeds; ``proven``: these have as much.

    ``bound``: of all-gather by any schedule, of which ``share`` is attained (1 is all). ``steps`` were taken.
    ``levels``: the worst path type within the machine, and to its NICs.
    """

    wiring: Wiring
    rings: tuple[Ring, ...]
    bound: Bound
    limit: float
    proven: bool
    steps: int
    levels: tuple[str, str]

    @property
    def total(self) -> float:
        """GB/s of all rings together: the bus bandwidth of long messages."""
        return sum(ring.gigabytes for ring in self.rings)

    @property
    def share(self) -> float:
        """What part of the bound the rings attain."""
        return self.total / float(self.bound.bus) if self.bound.bus else 0.0


def loads(wiring: Wiring, rings: Iterable[Ring]) -> dict[int, float]:
    """GB/s that rings put on the links of a machine, by index; after the links come its NICs' ports, in and out."""
    fabric, routes = wiring.fabric, Routes(wiring.fabric)
    carried: dict[int, float] = {}
    for ring in rings:
        stops, used = [fabric.ranks[gpu] for gpu in ring.order], []
        if ring.nics:
            enter, leave = ring.nics
            used += [len(fabric.links) + 2 * enter, len(fabric.links) + 2 * leave + 1]
            stops = [wiring.nics[enter], *stops, wiring.nics[leave]]
        else:
            stops.append(stops[0])
        for one, other in itertools.pairwise(stops):
            route = routes.best(one, other)
            if route is None:
                raise ValueError(f"no path from {fabric.vertices[one].name} to {fabric.vertices[other].name}")
            used += route.links
        for link in used:
            carried[link] = carried.get(link, 0.0) + ring.gigabytes
    return carried


def capacities(wiring: Wiring, ports: bool = True) -> list[float]:
    """GB/s of the links of a machine, and after them of its NICs' ports, in and out."""
    speeds = [link.gigabytes for link in wiring.fabric.links]
    return speeds + [wiring.nic_speed(nic) for nic in wiring.nics if ports for _ in range(2)]


def search(
    wiring: Wiring,
    *,
    gpus: Sequence[int] | None = None,
    machines: int = 1,
    cross_nic: bool = False,
    steps: int = STEPS,
) -> Rings:
    """Rings through the GPUs of a machine (or those that `gpus` names by position), for a job of so many such machines.

    Raises ValueError for fewer than two ranks in all, for several machines without a NIC, and for ranks that no path
    joins.
    """
    members = tuple(range(len(wiring.fabric.ranks)) if gpus is None else gpus)
    if len(members) * machines < 2 or not members:
        raise ValueError(f"a ring needs two ranks, and there are {len(members) * machines}")
    if machines > 1 and not wiring.nics:
        raise ValueError("a ring over several machines needs a NIC, and this machine has none")
    used = usable(wiring, members, nics=machines > 1)
    certificate = _bound(used, members, machines)
    if not certificate.bus:
        raise ValueError("nothing joins some of the ranks")
    places = _Places(used, members, machines > 1, cross_nic)
    limit = float(certificate.bus)
    packing = pack(places.capacity, places.start(), places.offer, limit, steps)
    rings = tuple(Ring(c.shape[0], share, c.shape[1]) for c, share in packing.shares)
    if not rings:
        raise ValueError("no ring was found whose hops all have a path")
    levels = places.levels(rings)
    return Rings(used, rings, certificate, min(limit, packing.limit), packing.proven, packing.steps, levels)


def _bound(used: Wiring, members: Sequence[int], machines: int) -> Bound:
    ranks = [used.fabric.ranks[member] for member in members]
    if machines == 1:
        return bound(used.fabric, "all_gather", ranks=ranks)
    joined = cluster([used] * machines)
    chosen = [joined.ranks[m * len(used.fabric.ranks) + member] for m in range(machines) for member in members]
    return bound(joined, "all_gather", ranks=chosen)


Shape = tuple[tuple[int, ...], tuple[int, ...]]  # order of the GPUs, and the NICs


class _Places:
    """The places of a tour: the GPUs, and after them the network where there are several machines."""

    def __init__(self, wiring: Wiring, members: Sequence[int], network: bool, cross_nic: bool) -> None:
        self.wiring, self.members, self.cross_nic = wiring, members, cross_nic
        self.vertices = [wiring.fabric.ranks[member] for member in members]
        self.routes = Routes(wiring.fabric)
        self.nics = wiring.nics if network else ()
        self.first = len(wiring.fabric.links)
        self.capacity = capacities(wiring, network)

    @functools.cached_property
    def hops(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The links between two members; none for pairs that no path joins."""
        count = len(self.vertices)
        pairs = ((i, j) for i in range(count) for j in range(count) if i != j)
        return {(i, j): r.links for i, j in pairs if (r := self._route(self.vertices[i], self.vertices[j]))}

    @functools.cached_property
    def doors(self) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
        """The links from the network by a NIC to a member, and back."""
        found = {}
        for nic, vertex in enumerate(self.nics):
            for member, gpu in enumerate(self.vertices):
                enter, leave = self._route(vertex, gpu), self._route(gpu, vertex)
                if enter and leave:
                    ends = (self.first + 2 * nic, self.first + 2 * nic + 1)
                    found[nic, member] = ((ends[0], *enter.links), (*leave.links, ends[1]))
        return found

    def _route(self, source: int, target: int) -> Route | None:
        return self.routes.best(source, target)

    def start(self) -> list[Column[Shape]]:
        """The ring in the order of the list, and the one back; for each NIC from the GPU that is nearest to it on."""
        count = len(self.members)
        columns = []
        for nic in range(len(self.nics)) if self.nics else [None]:
            first = 0 if nic is None else min(range(count), key=lambda m: self._far(self.nics[nic], self.vertices[m]))
            forward = [(first + step) % count for step in range(count)]
            for order in (forward, forward[:1] + forward[:0:-1]):
                column = self.column(order, () if nic is None else (nic, nic))
                columns += [column] if column else []
        return columns

    def _far(self, source: int, target: int) -> tuple[int, float]:
        route = self._route(source, target)
        return (len(LEVELS), 0.0) if route is None else (LEVELS.index(route.level), -route.gigabytes)

    def column(self, order: Sequence[int], nics: tuple[int, ...]) -> Column[Shape] | None:
        """The shape that visits these positions in turn, None where a hop has no path."""
        hops = list(itertools.pairwise(order))
        if not nics and len(order) > 1:
            hops.append((order[-1], order[0]))
        if any(hop not in self.hops for hop in hops):
            return None
        links = [link for hop in hops for link in self.hops[hop]]
        if nics:
            enter, leave = self.doors.get((nics[0], order[0])), self.doors.get((nics[1], order[-1]))
            if enter is None or leave is None:
                return None
            links += (*enter[0], *leave[1])
        return Column((tuple(self.members[at] for at in order), nics), tuple(links))

    def offer(self, prices: npt.NDArray[np.float64]) -> Offer[Shape]:
        """The cheapest tours: one for each NIC, or one by any."""
        count = len(self.members)

        def price(links: Sequence[int] | None) -> float:
            return _FAR if links is None else float(prices[list(links)].sum())

        inner = [[0.0 if i == j else price(self.hops.get((i, j))) for j in range(count)] for i in range(count)]
        if not self.nics:
            return self._offer([tour.cheapest(np.array(inner))], [()], 1)
        none = (None, None)
        ports = range(len(self.nics))
        doors = [[[price(self.doors.get((n, m), none)[way]) for m in range(count)] for n in ports] for way in (0, 1)]
        enter, leave = np.array(doors[0]), np.array(doors[1])
        choices = [[nic] for nic in ports]
        if self.cross_nic:
            choices.append(list(ports))
        found, nics = [], []
        for choice in choices:
            costs = np.zeros((count + 1, count + 1))
            costs[1:, 1:] = inner
            costs[0, 1:] = enter[choice].min(axis=0)
            costs[1:, 0] = leave[choice].min(axis=0)
            order, cost, exact = tour.cheapest(costs)
            order = [place - 1 for place in order[1:]]
            found.append((order, cost, exact))
            ends = (enter[choice, order[0]].argmin(), leave[choice, order[-1]].argmin())
            nics.append((choice[int(ends[0])], choice[int(ends[1])]))
        # Where any NIC may be left by any other, the last tour is the cheapest of all.
        return self._offer(found, nics, 1 if self.cross_nic else len(found))

    def _offer(
        self, found: list[tuple[list[int], float, bool]], nics: Sequence[tuple[int, ...]], last: int
    ) -> Offer[Shape]:
        """An offer of these tours; the cheapest shape of all is among the last ones."""
        made = [self.column(order, chosen) for (order, _, _), chosen in zip(found, nics, strict=True)]
        exact = all(each for _, _, each in found[-last:])
        least = min(cost for _, cost, _ in found[-last:]) if exact else 0.0
        return Offer([column for column in made if column], least)

    def levels(self, rings: Sequence[Ring]) -> tuple[str, str]:
        """The worst path type between GPUs that follow each other, and to the NICs."""
        inside, outside = ["loc"], ["loc"]
        ranks = self.wiring.fabric.ranks
        for ring in rings:
            around = ring.order if ring.nics else (*ring.order, ring.order[0])
            for one, other in itertools.pairwise(around):
                route = self._route(ranks[one], ranks[other])
                inside += [route.level] if route else []
            if ring.nics:
                enter, leave = (self.nics[nic] for nic in ring.nics)
                ends = (self._route(enter, ranks[ring.order[0]]), self._route(ranks[ring.order[-1]], leave))
                outside += [route.level for route in ends if route]
        return max(inside, key=LEVELS.index), max(outside, key=LEVELS.index)
