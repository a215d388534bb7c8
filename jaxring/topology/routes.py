"""The best path between two vertices of a fabric: its type in NCCL's terms, its bandwidth, and the links it takes."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from typing import NamedTuple

from jaxring.topology.fabric import Fabric, VertexKind

# NCCL's types, the best first.
LEVELS = ("loc", "nvl", "nvb", "c2c", "pix", "pxb", "p2c", "pxn", "phb", "sys", "net")
_KINDS = {"nvlink": 1, "pcie": 2, "c2c": 4, "cpu": 8, "net": 16}
_NVLINK, _PCIE, _C2C, _CPU, _NET = _KINDS.values()


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """A path. ``level``: one of `LEVELS`; ``gigabytes``: GB/s of its narrowest link, infinite for no link at all;
    ``links``: indices into the fabric's links, from the source on."""

    level: str
    gigabytes: float
    links: tuple[int, ...]


class _Passed(NamedTuple):
    """What decides a path's type: how many switches and CPUs (up to 2), whether a GPU, and which kinds of links."""

    switches: int = 0
    cpus: int = 0
    relayed: bool = False
    kinds: int = 0


class Routes:
    """Best paths of one fabric; those from a vertex are sought when they are first asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._from = functools.lru_cache(maxsize=None)(self._search)

    def best(self, source: int, target: int, relay: bool = True) -> Route | None:
        """The best path: the best type, then the most bandwidth, then the fewest links; None where there is none.

        A GPU between passes data on by NVLink, to another GPU (NVB) or to a NIC (PXN); not without `relay`.
        """
        return self._from(source, relay).get(target)

    def _search(self, source: int, relay: bool) -> dict[int, Route]:
        """Widest paths over pairs of a vertex and what was passed on the way, of which each target's best is taken."""
        best: dict[int, tuple[tuple[int, float, int], _Passed]] = {}
        came: dict[tuple[int, _Passed], tuple[tuple[int, _Passed] | None, int]] = {}
        heap: list[tuple[float, int, int, _Passed, tuple[int, _Passed] | None, int]] = [
            (-float("inf"), 0, source, _Passed(), None, -1)
        ]
        while heap:
            width, hops, vertex, passed, before, link = heapq.heappop(heap)
            here = (vertex, passed)
            if here in came:
                continue
            came[here] = (before, link)
            level = self._level(vertex, passed, vertex == source)
            if level is not None:
                rank = (level, width, hops)
                if vertex not in best or rank < best[vertex][0]:
                    best[vertex] = (rank, passed)
            for index in self.fabric.leaving[vertex]:
                after = self._pass(vertex, passed, index, link, relay)
                if after is not None and (self.fabric.links[index].target, after) not in came:
                    to = self.fabric.links[index]
                    heapq.heappush(heap, (max(width, -to.gigabytes), hops + 1, to.target, after, here, index))
        return {
            vertex: Route(LEVELS[rank[0]], -rank[1], self._links(came, (vertex, passed)))
            for vertex, (rank, passed) in best.items()
        }

    @staticmethod
    def _links(
        came: dict[tuple[int, _Passed], tuple[tuple[int, _Passed] | None, int]], last: tuple[int, _Passed]
    ) -> tuple[int, ...]:
        links: list[int] = []
        at: tuple[int, _Passed] | None = last
        while at is not None:
            at, link = came[at]
            if link >= 0:
                links.append(link)
        return tuple(reversed(links))

    def _pass(self, vertex: int, passed: _Passed, leaving: int, arrived: int, relay: bool) -> _Passed | None:
        """What is passed once the path leaves `vertex` by this link; None where data does not go that way."""
        link = self.fabric.links[leaving]
        kinds = passed.kinds | _KINDS[link.kind]
        if arrived < 0:
            return passed._replace(kinds=kinds)
        vertices = self.fabric.vertices
        match vertices[vertex].kind:
            case VertexKind.RANK:
                if not relay or passed.relayed or passed.kinds != _NVLINK:
                    return None
                return passed._replace(relayed=True, kinds=kinds)
            case VertexKind.NIC:
                # Through a card to or from one of its ports, and from a network's side.
                ends = (vertices[self.fabric.links[arrived].source].kind, vertices[link.target].kind)
                if VertexKind.NIC not in ends and VertexKind.SWITCH not in ends:
                    return None
                return passed._replace(kinds=kinds)
            case VertexKind.PCI:
                return passed._replace(switches=min(2, passed.switches + 1), kinds=kinds)
            case VertexKind.CPU:
                return passed._replace(cpus=min(2, passed.cpus + 1), kinds=kinds)
        return passed._replace(kinds=kinds)

    def _level(self, vertex: int, passed: _Passed, same: bool) -> int | None:
        """The type of a path that ends here, as an index into `LEVELS`; None where it is no path of NCCL's."""
        kind = self.fabric.vertices[vertex].kind
        cpus = passed.cpus + (kind is VertexKind.CPU)
        if same:
            level = "loc"
        elif passed.kinds & _NET:
            level = "net"
        elif passed.relayed and passed.kinds != _NVLINK:
            if kind is not VertexKind.NIC or cpus:
                return None
            level = "pxn"
        elif passed.kinds & _CPU or cpus > 1:
            level = "sys"
        elif passed.kinds == _NVLINK:
            level = "nvb" if passed.relayed else "nvl"
        elif cpus:
            level = "phb"
            if passed.kinds & _C2C and kind is VertexKind.CPU:
                level = "c2c"
            elif passed.kinds & _C2C and kind is VertexKind.NIC:
                level = "p2c"
        else:
            level = "pix" if passed.switches <= 1 else "pxb"
        return LEVELS.index(level)
