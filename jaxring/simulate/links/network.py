"""The links that messages take: routes over a fabric, and which links can ever be a bottleneck."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from jaxring.topology.fabric import Fabric, VertexKind

if TYPE_CHECKING:
    from collections.abc import Callable

Route = tuple[int, ...]


class Network:
    """Routes between ranks as links, with the speed of each link in bytes per microsecond and the latency of a route.

    ``route``: the links from one rank to another, where a cluster knows them by arithmetic; otherwise the route of
    least latency, of fewest links among those, and of the fastest narrowest link among those. Where several are left,
    ranks next to each other are reached by different ones, as static routing has it. ``through_ranks``: routes may pass
    through ranks.
    """

    def __init__(
        self, fabric: Fabric, route: Callable[[int, int], Route] | None = None, through_ranks: bool = False
    ) -> None:
        self.fabric = fabric
        self._through_ranks = through_ranks
        self.speed = [link.gigabytes * 1000 for link in fabric.links]
        self.binding = _binding(fabric)
        self.bursts: dict[int, float] = {}  # the token buckets of links that have one, in bytes
        self._route = route or self._shortest
        self._trees: dict[int, dict[int, list[int]]] = {}

    @property
    def ranks(self) -> int:
        return len(self.fabric.ranks)

    def route(self, source: int, target: int) -> Route:
        """The links from rank ``source`` to rank ``target``. Raises ValueError where there is no way."""
        return self._route(source, target)

    def latency(self, route: Route) -> float:
        """Microseconds until the first byte has passed all links."""
        return sum(self.fabric.links[link].latency for link in route)

    def _shortest(self, source: int, target: int) -> Route:
        start, end = self.fabric.ranks[source], self.fabric.ranks[target]
        if start not in self._trees:
            self._trees[start] = self._search(start)
        came_by = self._trees[start]
        if end not in came_by:
            names = (self.fabric.vertices[vertex].name for vertex in (start, end))
            raise ValueError(f"no links lead from {' to '.join(names)}")
        links: list[int] = []
        while end != start:
            ways = came_by[end]
            links.append(ways[target % len(ways)])
            end = self.fabric.links[links[-1]].source
        return tuple(reversed(links))

    def _search(self, start: int) -> dict[int, list[int]]:
        """The last links of the best routes to each vertex."""
        fabric = self.fabric
        came_by: dict[int, list[int]] = {}
        best: dict[int, tuple[float, int, float]] = {}
        queue: list[tuple[float, int, float, int, int]] = [(0.0, 0, -math.inf, start, -1)]
        while queue:
            latency, hops, width, vertex, link = heapq.heappop(queue)
            if vertex in best:
                if link >= 0 and best[vertex] == (latency, hops, width):
                    came_by[vertex].append(link)
                continue
            best[vertex] = (latency, hops, width)
            came_by[vertex] = [link] if link >= 0 else []
            if vertex != start and not self._through_ranks and fabric.vertices[vertex].kind is VertexKind.RANK:
                continue
            for index in fabric.leaving[vertex]:
                onward = fabric.links[index]
                if onward.target != start:
                    # Sums in different orders differ in their last digits.
                    onwards = round(latency + onward.latency, 9), hops + 1, max(width, -onward.gigabytes)
                    if onward.target not in best or best[onward.target] == onwards:
                        heapq.heappush(queue, (*onwards, onward.target, index))
        return came_by


def _binding(fabric: Fabric) -> list[bool]:
    """Whether each link can be a bottleneck.

    It cannot where all links that lead to its beginning, or all that leave its end, are no faster together: then these
    limit what passes. A link that excuses another one is itself a bottleneck, or was excused before.
    """
    entering: list[list[int]] = [[] for _ in fabric.vertices]
    for index, link in enumerate(fabric.links):
        entering[link.target].append(index)
    reverse = {(link.source, link.target): index for index, link in enumerate(fabric.links)}
    excused = [False] * len(fabric.links)
    needed = [False] * len(fabric.links)
    total_in = [sum(fabric.links[i].gigabytes for i in links) for links in entering]
    total_out = [sum(fabric.links[i].gigabytes for i in links) for links in fabric.leaving]
    is_rank = [vertex.kind is VertexKind.RANK for vertex in fabric.vertices]
    for index, link in enumerate(fabric.links):
        if needed[index]:
            continue
        back = reverse.get((link.target, link.source))
        returning = fabric.links[back].gigabytes if back is not None else 0.0
        for vertex, total, links in (
            (link.source, total_in, entering),
            (link.target, total_out, fabric.leaving),
        ):
            if not is_rank[vertex] and total[vertex] - returning <= link.gigabytes * (1 + 1e-12):
                for other in links[vertex]:
                    if other != back and not excused[other]:
                        needed[other] = True
                excused[index] = True
                break
    return [not excuse for excuse in excused]
