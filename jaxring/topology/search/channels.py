"""Rings as NCCL has them: channels that all have one speed, some of them alike."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from jaxring.topology.routes import Routes

if TYPE_CHECKING:
    from jaxring.topology.search.rings import Ring, Rings

MOST = 32
# GB/s that one channel moves well, by compute capability: the speeds at which NCCL itself settles on such machines.
_PER_CHANNEL = ((100, 45.0), (90, 30.0))
_OLDER = 20.0
_NEAR = 1e-6


@dataclasses.dataclass(frozen=True)
class Channels:
    """``rings``: one for each channel, with the speed that all have."""

    rings: tuple[Ring, ...]
    speed: float

    @property
    def total(self) -> float:
        """GB/s of all channels."""
        return self.speed * len(self.rings)


def channels(found: Rings, most: int = MOST) -> Channels:
    """At most so many channels of one speed that carry as much as they can: copies of the rings, by their shares.

    Of numbers of channels that carry the same, the smallest that leaves none of them more than a channel moves well.
    """
    sm = min((gpu.sm for gpu in found.wiring.machine.gpus), default=0)
    each = next((speed for least, speed in _PER_CHANNEL if sm >= least), _OLDER)
    best: Channels | None = None
    for count in range(1, most + 1):
        made = _of(found, count)
        fits = best is not None and best.speed <= each
        if (
            best is None
            or made.total > best.total * (1 + _NEAR)
            or (not fits and made.total > best.total * (1 - _NEAR))
        ):
            best = made
    assert best is not None
    return best


def _of(found: Rings, count: int) -> Channels:
    """So many channels, dealt to the rings by largest remainder, as fast as their links allow together."""
    parts = [ring.gigabytes * count / found.total for ring in found.rings]
    copies = [math.floor(part + _NEAR) for part in parts]
    behind = sorted(range(len(parts)), key=lambda i: copies[i] - parts[i])
    for index in behind[: count - sum(copies)]:
        copies[index] += 1
    chosen = [ring for ring, times in zip(found.rings, copies, strict=True) for _ in range(times)]
    speed = common_speed(found, chosen)
    return Channels(tuple(dataclasses.replace(ring, gigabytes=speed) for ring in chosen), speed)


def common_speed(found: Rings, rings: list[Ring]) -> float:
    """The GB/s that all these rings can have at once on the machine that was searched."""
    fabric, routes = found.wiring.fabric, Routes(found.wiring.fabric)
    used: collections.Counter[int] = collections.Counter()
    ports: collections.Counter[tuple[int, int]] = collections.Counter()
    for ring in rings:
        stops = [fabric.ranks[gpu] for gpu in ring.order]
        if ring.nics:
            ends = [found.wiring.nics[nic] for nic in ring.nics]
            ports.update([(ends[0], 0), (ends[1], 1)])
            stops = [ends[0], *stops, ends[1]]
        else:
            stops.append(stops[0])
        for one, other in itertools.pairwise(stops):
            route = routes.best(one, other)
            if route is None:
                return 0.0
            used.update(route.links)
    speeds = [fabric.links[link].gigabytes / times for link, times in used.items()]
    speeds += [found.wiring.nic_speed(nic) / times for (nic, _), times in ports.items()]
    return min(speeds)
