"""The cheapest ways between the ranks of a fabric, through what is no rank, at some prices of the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from jaxring.topology.fabric import Fabric

# A link's price grows exponentially with its load, as in fractional packing by multiplicative weights (Garg and
# Koenemann).
_STEEP = 16.0


class Ways:
    """Ways of one fabric. ``cost[i, j]``: what the cheapest way from rank i to rank j costs; set by `price`."""

    def __init__(self, fabric: Fabric) -> None:
        self.ranks = fabric.ranks
        self.count = len(fabric.ranks)
        self.capacity = [link.gigabytes for link in fabric.links]
        size = len(fabric.vertices)
        # A rank is two vertices, one that links leave and one that they enter, so that no way leads through it.
        number = {rank: at for at, rank in enumerate(fabric.ranks)}
        self._size = size + self.count
        self._enters = [size + at for at in range(self.count)]
        self._sources = np.array([link.source for link in fabric.links])
        self._targets = np.array([size + number[t] if (t := k.target) in number else t for k in fabric.links])
        self._before: npt.NDArray[np.int32]
        self._link_of: dict[tuple[int, int], int]
        self.cost: npt.NDArray[np.float64]

    def price(self, prices: npt.NDArray[np.float64]) -> None:
        """Finds the cheapest ways at these prices."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        # An edge of price 0 would be none. Of parallel links the cheapest counts.
        costs = np.maximum(prices, 0) + 1e-12
        cheapest = np.lexsort((costs, self._targets, self._sources))
        ends = np.stack((self._sources[cheapest], self._targets[cheapest]))
        first = np.ones(len(cheapest), dtype=bool)
        first[1:] = (ends[:, 1:] != ends[:, :-1]).any(axis=0)
        chosen = cheapest[first]
        pairs = (self._sources[chosen], self._targets[chosen])
        graph = csr_array((costs[chosen], pairs), shape=(self._size, self._size))
        far, self._before = dijkstra(graph, indices=list(self.ranks), return_predecessors=True)
        self._link_of = {(int(self._sources[i]), int(self._targets[i])): int(i) for i in chosen}
        self.cost = far[:, self._enters]

    def way(self, start: int, end: int) -> list[int]:
        """The links of the cheapest way from one rank to another."""
        links = []
        at, before = self._enters[end], self._before[start]
        while at != self.ranks[start]:
            previous = int(before[at])
            links.append(self._link_of[previous, at])
            at = previous
        return links


class Loads:
    """What shapes put on links, and prices that lead others round them."""

    def __init__(self, capacity: list[float]) -> None:
        self._room = np.array(capacity)
        self._load = np.zeros(len(capacity))

    def add(self, links: tuple[int, ...]) -> None:
        """A shape uses these links."""
        taken = list(links)
        np.add.at(self._load, taken, 1 / self._room[taken])

    def prices(self) -> npt.NDArray[np.float64]:
        """The fullest link is dear."""
        fullest = float(self._load.max()) or 1.0
        found: npt.NDArray[np.float64] = np.exp(_STEEP * (self._load / fullest - 1)) / self._room
        return found
