"""Maximal flow in whole numbers (Dinic), and the cut that limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Network:
    """A directed network. Capacities are whole numbers, so that flows and cuts are exact."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.arcs: list[list[int]] = [[] for _ in range(count)]
        # Arc i and its reverse i ^ 1.
        self.heads: list[int] = []
        self.capacity: list[int] = []
        self.left: list[int] = []

    def add(self, source: int, target: int, capacity: int) -> int:
        """An arc's number, by which `capacity` may be changed before the next flow."""
        index = len(self.heads)
        self.arcs[source].append(index)
        self.arcs[target].append(index + 1)
        self.heads += (target, source)
        self.capacity += (capacity, 0)
        return index

    def flow(self, source: int, sink: int, enough: int | None = None) -> int:
        """The most that gets from source to sink; no more is sought once there is `enough`."""
        self.left = left = list(self.capacity)
        arcs, heads = self.arcs, self.heads
        total = 0
        while enough is None or total < enough:
            depth = self._depths(source, sink)
            if depth[sink] < 0:
                break
            at = [0] * self.count
            path: list[int] = []
            vertex = source
            while True:
                if vertex == sink:
                    pushed = min(left[arc] for arc in path)
                    total += pushed
                    for arc in path:
                        left[arc] -= pushed
                        left[arc ^ 1] += pushed
                    # Back to the first arc that is full.
                    first = next(i for i, arc in enumerate(path) if not left[arc])
                    vertex = heads[path[first] ^ 1]
                    del path[first:]
                row = arcs[vertex]
                while at[vertex] < len(row):
                    arc = row[at[vertex]]
                    if left[arc] and depth[heads[arc]] == depth[vertex] + 1:
                        break
                    at[vertex] += 1
                else:
                    if not path:
                        break
                    vertex = heads[path.pop() ^ 1]
                    at[vertex] += 1
                    continue
                path.append(arc)
                vertex = heads[arc]
        return total

    def _depths(self, source: int, sink: int) -> list[int]:
        depth = [-1] * self.count
        depth[source] = 0
        row = [source]
        while row and depth[sink] < 0:
            after = []
            for vertex in row:
                for arc in self.arcs[vertex]:
                    head = self.heads[arc]
                    if depth[head] < 0 and self.left[arc]:
                        depth[head] = depth[vertex] + 1
                        after.append(head)
            row = after
        return depth

    def reached(self, source: int) -> frozenset[int]:
        """The source's side of the minimal cut of the last flow, which must have been sought to its end."""
        seen = {source}
        row = [source]
        while row:
            vertex = row.pop()
            for arc in self.arcs[vertex]:
                head = self.heads[arc]
                if head not in seen and self.left[arc]:
                    seen.add(head)
                    row.append(head)
        return frozenset(seen)


def scaled(network: Network, factor: int, base: Sequence[int]) -> None:
    """Set the capacities of the first arcs, one for each of `base`, to so many times these."""
    for index, capacity in enumerate(base):
        network.capacity[2 * index] = factor * capacity
