"""Rings as NCCL has them: channels that all have one speed, some of them alike."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.topology.search.rings import capacities, loads
from jaxring.topology.search.shares import apportion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.topology.search.rings import Ring, Rings
    from jaxring.topology.wiring import Wiring

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
        made = of_one_speed(found, count)
        fits = best is not None and best.speed <= each
        if (
            best is None
            or made.total > best.total * (1 + _NEAR)
            or (not fits and made.total > best.total * (1 - _NEAR))
        ):
            best = made
    assert best is not None
    return best


def of_one_speed(found: Rings, count: int) -> Channels:
    """So many channels, dealt to the rings by largest remainder, as fast as their links allow together."""
    copies = apportion([ring.gigabytes for ring in found.rings], count)
    chosen = [ring for ring, times in zip(found.rings, copies, strict=True) for _ in range(times)]
    speed = common_speed(found.wiring, chosen)
    return Channels(tuple(dataclasses.replace(ring, gigabytes=speed) for ring in chosen), speed)


def common_speed(wiring: Wiring, rings: Iterable[Ring]) -> float:
    """The GB/s that all these rings can have at once on a machine. Raises ValueError for a hop without a path."""
    room = capacities(wiring)
    alike = loads(wiring, (dataclasses.replace(ring, gigabytes=1.0) for ring in rings))
    return min(room[link] / times for link, times in alike.items())
