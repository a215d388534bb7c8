"""What goes wrong in a run: slow ranks, late starts, jitter, lost messages, links that fail, ranks that die.

All that is drawn comes from one seed, so a run can be repeated.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxring.simulate.links.network import Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """``stragglers``: how many times as slow each named rank's work on messages is. ``late``: us by which ranks begin
    later. ``jitter``: mean of the us by which messages arrive later, exponentially distributed. ``loss``: how probable
    it is that a message is lost; it is sent again after ``timeout`` us. ``links``: (from, to, at us, share of its
    speed) by names of the fabric's vertices; a share of 0 is a link that fails. ``deaths``: when ranks die, in us.
    """

    seed: int = 0
    stragglers: tuple[tuple[int, float], ...] = ()
    late: tuple[tuple[int, float], ...] = ()
    jitter: float = 0.0
    loss: float = 0.0
    timeout: float = 0.0
    links: tuple[tuple[str, str, float, float], ...] = ()
    deaths: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss is a probability below 1, not {self.loss}")
        times = (self.jitter, self.timeout, *(us for _, us in (*self.late, *self.deaths)))
        if any(not 0 <= us < math.inf for us in times):
            raise ValueError("times of faults are finite and not negative")
        if any(not factor > 0 for _, factor in self.stragglers) or any(not 0 <= s <= 1 for *_, s in self.links):
            raise ValueError("a straggler's factor is above 0, and a link's share of its speed from 0 to 1")

    def on(self, network: Network, nranks: int) -> Wrong:
        """The faults of one run. Raises ValueError for a rank or a link that there is not."""
        for rank, _ in (*self.stragglers, *self.late, *self.deaths):
            if not 0 <= rank < nranks:
                raise ValueError(f"there is no rank {rank}; there are {nranks}")
        names = [vertex.name for vertex in network.fabric.vertices]
        numbers = {(names[link.source], names[link.target]): i for i, link in enumerate(network.fabric.links)}
        limits = []
        for source, target, when, share in self.links:
            if (source, target) not in numbers:
                raise ValueError(f"no link leads from {source!r} to {target!r}")
            link = numbers[source, target]
            limits.append((when, link, network.speed[link] * share))
            network.binding[link] = True
        return Wrong(self, limits)


class Wrong:
    """The faults as a run asks for them."""

    def __init__(self, faults: Faults, limits: list[tuple[float, int, float]]) -> None:
        self._faults, self._limits = faults, limits
        self._draw = random.Random(faults.seed)
        self._slow, self._late = dict(faults.stragglers), dict(faults.late)

    def begins(self, rank: int) -> float:
        """Us by which the rank begins later."""
        return self._late.get(rank, 0.0)

    def slowed(self, rank: int) -> float:
        """How many times as long the rank's work takes."""
        return self._slow.get(rank, 1.0)

    def delay(self) -> float:
        """Us by which the next message arrives later."""
        return self._draw.expovariate(1 / self._faults.jitter) if self._faults.jitter else 0.0

    def resent(self) -> tuple[int, float]:
        """How often the next message is sent again, and the us that this adds besides its bytes."""
        times = 0
        while self._faults.loss and self._draw.random() < self._faults.loss:
            times += 1
        return times, times * self._faults.timeout

    def limits(self) -> list[tuple[float, int, float]]:
        """(us, link, its speed from then on)."""
        return self._limits

    def deaths(self) -> dict[int, float]:
        """When ranks die."""
        return dict(self._faults.deaths)
