"""What a search found, in names: what limits a machine, what rings fill, and all of it as plain data for JSON."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from jaxring.topology.fabric import Fabric, VertexKind
from jaxring.topology.search import gather
from jaxring.topology.search import rings as ring_search
from jaxring.topology.search import trees as tree_search
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import cluster, name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

    ``gathering``: trees of an all-gather, None where there are too many ranks for that search. ``seconds``: CPU
    time of all searches.
    """

    machines: int
    fabric: Fabric
    rings: Rings
    trees: Trees
    gathering: Gathering | None
    seconds: float = 0.0


def clock() -> float:
    """CPU seconds of this process, once all that a search loads is loaded: that is no part of it."""
    import scipy.optimize
    import scipy.sparse.csgraph  # noqa: F401

    return time.process_time()


def find(
    wiring: Wiring,
    machines: int = 1,
    cross_nic: bool = False,
    gpus: Sequence[int] | None = None,
    steps: int | None = None,
) -> Found:
    """Searches both, among the GPUs of each machine that `gpus` names by position (None: all), with at most so many
    steps of each search (None: its own number). Raises ValueError where there are no rings."""
    began = clock()
    budget = ring_search.STEPS if steps is None else steps
    rings = ring_search.search(wiring, gpus=gpus, machines=machines, cross_nic=cross_nic, steps=budget)
    used = usable(wiring, gpus, nics=machines > 1)
    if gpus is not None:
        used = dataclasses.replace(used, fabric=_among(used.fabric, {used.fabric.ranks[gpu] for gpu in gpus}))
    fabric = used.fabric if machines == 1 else cluster([used] * machines)
    return Found(machines, fabric, rings, *trees_of(fabric, steps), clock() - began)


def trees_of(fabric: Fabric, steps: int | None = None) -> tuple[Trees, Gathering | None]:
    """Trees of an all-reduce, and of an all-gather where there are not too many ranks, each searched with at most so
    many steps (None: its own number). Raises ValueError for one rank, or ranks that no links join."""
    many = len(fabric.ranks) >= _MANY
    budget = tree_search.STEPS if steps is None else steps
    trees = tree_search.search(fabric, budget, _ENOUGH if many else 1.0)
    return trees, None if many else gather.search(fabric, steps=gather.STEPS if steps is None else steps)


def _among(fabric: Fabric, members: Iterable[int]) -> Fabric:
    """The fabric with these vertices as its ranks; other GPUs only pass data on."""
    others = set(fabric.ranks) - set(members)
    vertices = [
        dataclasses.replace(vertex, kind=VertexKind.PCI) if at in others else vertex
        for at, vertex in enumerate(fabric.vertices)
    ]
    return Fabric(tuple(vertices), fabric.links)


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
        "searched_seconds": found.seconds,
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
        "all_reduce_trees": _trees(found.fabric, trees),
        "all_gather_trees": _trees(found.fabric, found.gathering) if found.gathering else None,
        "bottleneck": {
            "ranks": ranks,
            "enters": enters,
            "links": links_of(found.fabric, rings.bound.links),
        },
    }


def _trees(fabric: Fabric, found: Trees | Gathering) -> dict[str, Any]:
    """``ranks``: by name, in the order in which ``parents`` counts them."""
    return {
        "ranks": [fabric.vertices[rank].name for rank in fabric.ranks],
        "bus_gigabytes": found.bus,
        "bound_bus_gigabytes": float(found.bound.bus),
        "share": found.share,
        "proven": found.proven,
        "steps": found.steps,
        "trees": [{"parents": list(tree.parents), "gigabytes": tree.gigabytes} for tree in found.trees],
    }
