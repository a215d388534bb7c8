"""Rings over several machines, from the chains that were searched on each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.topology.search.bound import bound
from jaxring.topology.search.channels import MOST, of_one_speed
from jaxring.topology.wiring import cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.topology.fabric import Fabric
    from jaxring.topology.search.bound import Bound
    from jaxring.topology.search.rings import Ring, Rings


@dataclasses.dataclass(frozen=True)
class Joined:
    """``rings``: ranks of the whole job in their order, one ring for each channel; ``speed``: GB/s of each.

    ``fabric``: all machines, joined by one network; ``bound``: of its all-gather by any schedule.
    """

    rings: tuple[tuple[int, ...], ...]
    speed: float
    fabric: Fabric
    bound: Bound

    @property
    def total(self) -> float:
        """GB/s of all rings together: the bus bandwidth of long messages."""
        return self.speed * len(self.rings)

    @property
    def share(self) -> float:
        """What part of the bound the rings attain."""
        return self.total / float(self.bound.bus) if self.bound.bus else 0.0


def join(machines: Sequence[Rings], most: int = MOST) -> Joined:
    """Joins the chains of machines, in their order, into at most so many rings of one speed, that of the slowest.

    The ranks of a machine follow those of the machine before it. Chains are joined in the order of the NICs by which
    they enter, so that machines that are alike keep to the same rails. Raises ValueError for fewer than two machines,
    and for rings that were searched on a machine alone.
    """
    if len(machines) < 2:
        raise ValueError(f"rings of one machine need no joining; there are {len(machines)}")
    if any(not ring.nics for found in machines for ring in found.rings):
        raise ValueError("these rings do not leave their machine; search them for several machines")
    fabric = cluster([found.wiring for found in machines])
    best = Joined((), 0.0, fabric, bound(fabric, "all_gather", ranks=_chosen(machines, fabric)))
    for count in range(1, most + 1):
        parts = [of_one_speed(found, count) for found in machines]
        speed = min(part.speed for part in parts)
        if speed * count > best.total * (1 + 1e-6):
            chains = [sorted(part.rings, key=_rail) for part in parts]
            joined = tuple(_around(row) for row in zip(*_numbered(machines, chains), strict=True))
            best = dataclasses.replace(best, rings=joined, speed=speed)
    return best


def _chosen(machines: Sequence[Rings], fabric: Fabric) -> list[int]:
    """The vertices of the ranks: of each machine those that its rings go through."""
    chosen: list[int] = []
    first = 0
    for found in machines:
        chosen += [fabric.ranks[first + member] for member in sorted(found.rings[0].order)]
        first += len(found.wiring.fabric.ranks)
    return chosen


def _rail(ring: Ring) -> tuple[int, ...]:
    return ring.nics


def _numbered(machines: Sequence[Rings], chains: Sequence[Sequence[Ring]]) -> list[list[tuple[int, ...]]]:
    """Each machine's chains, by ranks of the whole job: members of a machine count in their order there."""
    numbered, first = [], 0
    for found, rings in zip(machines, chains, strict=True):
        members = sorted(found.rings[0].order)
        rank = {member: first + at for at, member in enumerate(members)}
        numbered.append([tuple(rank[gpu] for gpu in ring.order) for ring in rings])
        first += len(members)
    return numbered


def _around(row: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(rank for chain in row for rank in chain)
