"""What a search found, in names: what limits a machine, what rings fill, and all of it as plain data for JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.topology.fabric import VertexKind
from jaxring.topology.search import gather
from jaxring.topology.search import rings as ring_search
from jaxring.topology.search import trees as tree_search
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import cluster, name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.topology.fabric import Fabric
    from jaxring.topology.search.bound import Bound
    from jaxring.topology.search.gather import Gathering
    from jaxring.topology.search.rings import Rings
    from jaxring.topology.search.trees import Trees
    from jaxring.topology.wiring import Wiring

_FULL = 1 - 1e-6
# A tree search over many ranks ends with this part of the bound, since the last percents take most of its steps. An
# all-gather has trees for each rank, too many then.
_ENOUGH = 0.97
_MANY = 32


@dataclasses.dataclass(frozen=True)
class Found:
    """Rings and trees of a job on so many machines of one kind. ``fabric`` is what the bounds are of.

    ``gathering``: trees of an all-gather, None where there are too many ranks for that search.
    """

    machines: int
    fabric: Fabric
    rings: Rings
    trees: Trees
    gathering: Gathering | None


def find(wiring: Wiring, machines: int = 1, cross_nic: bool = False) -> Found:
    """Searches both. Raises ValueError where the machine has no rings."""
    rings = ring_search.search(wiring, machines=machines, cross_nic=cross_nic)
    used = usable(wiring, nics=machines > 1)
    fabric = used.fabric if machines == 1 else cluster([used] * machines)
    return Found(machines, fabric, rings, *trees_of(fabric))


def trees_of(fabric: Fabric) -> tuple[Trees, Gathering | None]:
    """Trees of an all-reduce, and of an all-gather where there are not too many ranks. Raises ValueError for one rank,
    or ranks that no links join."""
    trees = tree_search.search(fabric, enough=_ENOUGH if len(fabric.ranks) >= _MANY else 1.0)
    return trees, gather.search(fabric) if len(fabric.ranks) < _MANY else None


def ranks_of(fabric: Fabric, group: Iterable[int]) -> list[str]:
    """The names of a group's ranks."""
    vertices = [fabric.vertices[at] for at in sorted(group)]
    return [vertex.name for vertex in vertices if vertex.kind is VertexKind.RANK]


def bottleneck(fabric: Fabric, bound: Bound) -> tuple[list[str], bool]:
    """The ranks of the smaller side of an all-gather's worst cut, and whether data has to enter it (or to leave it)."""
    inside = ranks_of(fabric, bound.groups[0])
    outside = [name for name in ranks_of(fabric, range(len(fabric.vertices))) if name not in inside]
    return (outside, True) if len(outside) <= len(inside) else (inside, False)


def links_of(fabric: Fabric, links: Iterable[int]) -> list[dict[str, Any]]:
    """Links as plain data."""
    return [
        {
            "from": fabric.vertices[fabric.links[link].source].name,
            "to": fabric.vertices[fabric.links[link].target].name,
            "kind": fabric.links[link].kind,
            "gigabytes": fabric.links[link].gigabytes,
        }
        for link in links
    ]


def filled(found: Rings) -> list[int]:
    """The links of the machine that the rings fill."""
    links = found.wiring.fabric.links
    carried = ring_search.loads(found.wiring, found.rings)
    return sorted(link for link, sum_ in carried.items() if link < len(links) and sum_ >= _FULL * links[link].gigabytes)


def plain(found: Found) -> dict[str, Any]:
    """All of it as plain data."""
    rings, trees = found.rings, found.trees
    gpus = rings.wiring.machine.gpus
    ports = [rings.wiring.fabric.vertices[nic].name for nic in rings.wiring.nics]
    ranks, enters = bottleneck(found.fabric, rings.bound)
    return {
        "machines": found.machines,
        "rings": {
            "bus_gigabytes": rings.total,
            "bound_bus_gigabytes": float(rings.bound.bus),
            "share": rings.share,
            "best_possible_bus_gigabytes": rings.limit,
            "proven": rings.proven,
            "steps": rings.steps,
            "rings": [
                {
                    "gpus": [name(gpus[gpu]) for gpu in ring.order],
                    "nics": [ports[nic] for nic in ring.nics],
                    "gigabytes": ring.gigabytes,
                }
                for ring in rings.rings
            ],
            "filled": links_of(rings.wiring.fabric, filled(rings)),
        },
        "all_reduce_trees": _trees(trees),
        "all_gather_trees": _trees(found.gathering) if found.gathering else None,
        "bottleneck": {
            "ranks": ranks,
            "enters": enters,
            "links": links_of(found.fabric, rings.bound.links),
        },
    }


def _trees(found: Trees | Gathering) -> dict[str, Any]:
    return {
        "bus_gigabytes": found.bus,
        "bound_bus_gigabytes": float(found.bound.bus),
        "share": found.share,
        "proven": found.proven,
        "steps": found.steps,
        "trees": [{"parents": list(tree.parents), "gigabytes": tree.gigabytes} for tree in found.trees],
    }
