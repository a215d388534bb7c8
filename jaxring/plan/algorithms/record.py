"""What the planner knows of an algorithm besides its steps: one record for each, exported by the algorithm's module."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES, Root
from jaxring.plan.cost import Call, Shape
from jaxring.plan.profile_file import COMMODITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.plan.cost import Topology
    from jaxring.plan.profile import Constants
    from jaxring.plan.schedule import Schedule, Spec

ENGINES = frozenset({"CPU", "GPU"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm. A field without a default must be given: without a price it would look like the cheapest.

    ``build`` makes its schedule, and ``shape`` says what that costs between memory domains (`jaxring.plan.cost`).
    ``preference`` decides between equal prices: the lower number wins.
    ``memory``: its steps address the memory of ranks of the same domain, so that ranks of one domain send no messages.
    ``hierarchical``: it works by memory within a domain and by messages between domains.
    ``partials``: its messages carry partial results, which are accumulator elements.
    ``ordered``: it passes data from each domain to the next in the order of `Spec.order`.
    ``exact``: sums of floats are exact and rounded once. Every reduction of its schedules is one final step.
    ``engines`` that play it, and ``unasked``, those of them on which the tuner may choose it by itself.
    ``differs``: whether it differs from a simpler algorithm on a placement; otherwise it is no candidate there.
    ``channels``: how many channels hide its depth, by the number of ranks; None: as many as its bytes pay for.
    ``keeps``: whether each rank completes its own results of a reduce-scatter, by the number of ranks.
    """

    name: str
    summary: str
    collectives: frozenset[str]
    build: Callable[[Spec], Schedule]
    shape: Callable[[Call], Shape]
    preference: int
    memory: bool = False
    hierarchical: bool = False
    partials: bool = True
    ordered: bool = False
    exact: bool = False
    engines: frozenset[str] = ENGINES
    unasked: frozenset[str] = ENGINES
    differs: Callable[[tuple[int, ...]], bool] = lambda _: True
    channels: Callable[[int], int] | None = None
    keeps: Callable[[int], bool] = lambda _: True

    def __post_init__(self) -> None:
        unknown = sorted(self.collectives - COLLECTIVES.keys())
        if unknown or not self.collectives:
            raise ValueError(
                f"algorithm {self.name!r} serves {', '.join(unknown) or 'no collective'}; there are "
                f"{', '.join(COLLECTIVES)}"
            )
        if not callable(self.shape):
            raise TypeError(
                f"algorithm {self.name!r} has no price: give shape=, a function from plan.cost.Call to Shape"
            )
        if not self.unasked <= self.engines or not self.engines <= ENGINES:
            raise ValueError(f"algorithm {self.name!r}: engines are some of {', '.join(sorted(ENGINES))}")

    def shape_on(
        self,
        collective: str,
        topology: Topology,
        nbytes: int,
        channels: int = 1,
        widening: int = 1,
        constants: Constants = COMMODITY.constants,
        spread: float = 1.0,
    ) -> Shape:
        """The shape of its schedule for ``nbytes`` of input per rank."""
        call = Call(collective, topology, nbytes, channels, widening, self.hierarchical, constants, spread)
        if self.memory and topology.domains == 1:
            # Each rank reads its share of all inputs and writes it to all outputs; a rooted fold is the root's alone.
            alone = COLLECTIVES[collective].root is Root.TARGET
            return Shape(0, 0, 0, call.total * topology.nranks if alone else round(call.total * (1 + spread)))
        between = self.shape(call)
        if not self.memory or topology.width == 1 or between.memory_bytes:
            return between
        return dataclasses.replace(between, memory_bytes=round(call.total * (1 + spread)))
