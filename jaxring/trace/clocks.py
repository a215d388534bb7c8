"""Brings the flight records of several hosts to one clock, by what the processes' heartbeats have measured."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.trace.flight import Flight


def aligned(flights: Sequence[Flight]) -> list[tuple[Flight, int | None]]:
    """The records with their moments by the clock of the first one, and how wrong these may be, in ns.

    None: nothing has compared the two clocks, so the moments are as the host's own clock has them.
    """
    if not flights:
        return []
    return [
        (_moved(flight, flights[0].shift - flight.shift - offset), error) if error is not None else (flight, None)
        for flight, (offset, error) in zip(flights, _offsets(flights), strict=True)
    ]


def _offsets(flights: Sequence[Flight]) -> list[tuple[int, int | None]]:
    """Each monotonic clock less the first one, by the comparisons that add up to the smallest error."""
    edges = _edges(flights)
    found: dict[int, tuple[int, int]] = {}
    queue = [(0, 0, 0)]  # error, which, offset
    while queue:
        error, which, offset = heapq.heappop(queue)
        if which in found:
            continue
        found[which] = (offset, error)
        for other, (more, wrong) in edges[which].items():
            if other not in found:
                heapq.heappush(queue, (error + wrong, other, offset + more))
    return [found.get(i, (0, None)) for i in range(len(flights))]


def _edges(flights: Sequence[Flight]) -> list[dict[int, tuple[int, int]]]:
    """By record: of others, whose clock less its own, and how wrong that may be."""
    edges: list[dict[int, tuple[int, int]]] = [{} for _ in flights]
    by_process = {flight.process: i for i, flight in enumerate(flights) if flight.process >= 0}

    def compared(one: int, other: int, offset: int, error: int) -> None:
        for here, there, sign in ((one, other, 1), (other, one, -1)):
            if there not in edges[here] or error < edges[here][there][1]:
                edges[here][there] = (sign * offset, error)

    for i, flight in enumerate(flights):
        for process, (offset, error) in flight.clocks.items():
            other = by_process.get(process)
            if other is not None and other != i:
                compared(i, other, offset, error)
    # The processes of a host have one monotonic clock. Hosts of one name have been told apart by a comparison.
    by_host: dict[str, list[int]] = {}
    for i, flight in enumerate(flights):
        by_host.setdefault(flight.host, []).append(i)
    for one, other in itertools.chain.from_iterable(itertools.pairwise(of_host) for of_host in by_host.values()):
        offset, error = edges[one].get(other, (0, 0))
        if abs(offset) <= error:
            compared(one, other, 0, 0)
    return edges


def _moved(flight: Flight, by: int) -> Flight:
    if by == 0:
        return flight
    records = tuple(
        dataclasses.replace(r, arrived=r.arrived + by, launched=r.launched + by, ended=r.ended + by if r.ended else 0)
        for r in flight.records
    )
    samples = tuple(sample._replace(at=sample.at + by) for sample in flight.samples)
    return dataclasses.replace(flight, records=records, samples=samples, shift=flight.shift + by)
