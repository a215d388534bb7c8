"""The links that messages and accesses to memory take, found once for each pair of ranks and each step."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

Route = tuple[int, ...]
# (from rank, to rank) of the data that a step moves by memory.
Pairs = tuple[tuple[int, int], ...]


class Ways(Protocol):
    """How messages travel: the links of a connection, their speeds, and the bytes of token buckets that some have."""

    @property
    def speed(self) -> list[float]: ...
    @property
    def bursts(self) -> Mapping[int, float]: ...
    @property
    def binding(self) -> list[bool]: ...
    def route(self, source: int, target: int) -> Route: ...
    def latency(self, route: Route) -> float: ...


class Routes:
    """What is known of ``ways``. ``multicast``: switches reduce and copy."""

    def __init__(self, ways: Ways, multicast: bool) -> None:
        self._ways, self._multicast = ways, multicast
        self._pairs: dict[tuple[int, int], tuple[Route, Route, float]] = {}
        self._steps: dict[tuple[int, Pairs], tuple[Route, Route]] = {}

    def between(self, source: int, target: int) -> tuple[Route, Route, float]:
        """The links, those of them that can be bottlenecks, and the latency."""
        found = self._pairs.get((source, target))
        if found is None:
            full = self._ways.route(source, target)
            limited = tuple(link for link in full if self._ways.binding[link])
            found = self._pairs[source, target] = (full, limited, self._ways.latency(full))
        return found

    def by_memory(self, rank: int, pairs: Pairs) -> tuple[Route, Route]:
        """The links over which a step of ``rank`` moves data by memory: those that can be bottlenecks, and all of them,
        each once for every crossing of a pair. A pair may be there several times."""
        found = self._steps.get((rank, pairs))
        if found is None:
            routes = [self.between(*pair)[0] for pair in pairs]
            links = multicast(pairs, routes, rank) if self._multicast else [link for each in routes for link in each]
            limited = tuple(link for link in links if self._ways.binding[link])
            found = self._steps[rank, pairs] = (limited, tuple(links))
        return found


def multicast(pairs: tuple[tuple[int, int], ...], routes: list[Route], rank: int) -> list[int]:
    """The links of a step whose switch reduces what ``rank`` reads, and copies what it writes.

    What the rank reads leaves every rank, itself included, and reaches it once; what it writes leaves it once and
    reaches every rank. ``routes`` are those of the pairs, each from a rank to the switch and from there to a rank.
    """
    up = {source: route[0] for (source, _), route in zip(pairs, routes, strict=True)}
    down = {target: route[-1] for (_, target), route in zip(pairs, routes, strict=True)}
    links: list[int] = []
    times = collections.Counter(pairs)
    if reads := [n for (_, target), n in times.items() if target == rank]:
        links += [down[rank], *up.values()] * min(reads)
    if writes := [n for (source, _), n in times.items() if source == rank]:
        links += [up[rank], *down.values()] * min(writes)
    return links
