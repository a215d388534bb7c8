"""What comes of playing a program: times, and the bytes of each link."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jaxring.simulate.links.routes import Route


@dataclasses.dataclass(frozen=True)
class Played:
    """``time_us``: until the last rank has ended. ``ended``: when each simulated rank did. ``moved``: bytes of each
    link, of those that the simulated ranks' messages take. ``messages``, ``events``: how many there were. ``rounds``:
    when the last rank had ended each of the rounds, where there were several."""

    time_us: float
    ended: dict[int, float]
    moved: dict[int, float]
    messages: int
    events: int
    rounds: Sequence[float] = ()

    @property
    def round_us(self) -> float:
        """What a round takes: of several a mean of the later half, which the beginning does not disturb."""
        if len(self.rounds) < 2:
            return self.time_us
        last = len(self.rounds) - 1
        return (self.rounds[last] - self.rounds[last // 2]) / (last - last // 2)


def together(ended: dict[int, float], memory: Mapping[int, Iterable[int]], barrier: float) -> dict[int, float]:
    """The same where ranks that share memory wait for the last of them."""
    for members in memory.values():
        last = max((ended[rank] for rank in members if rank in ended), default=0.0)
        ended |= dict.fromkeys(members, last + barrier)
    return ended


def of_links(carried: Iterator[tuple[Route, float]]) -> dict[int, float]:
    """The bytes of each link, from the bytes that took each route."""
    moved: dict[int, float] = {}
    for route, amount in carried:
        for link in route:
            moved[link] = moved.get(link, 0.0) + amount
    return moved
