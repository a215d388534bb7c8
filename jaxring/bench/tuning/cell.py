"""What is measured together: the candidates for one collective of one size on one layout."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError
from jaxring.plan import tuner, user
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.profile_file import COMMODITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.choice import Choice
    from jaxring.plan.profile import Profile

# Without permute, whose only candidate is direct. Rooted ones fold or spread as these do.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
DTYPE = "float32"
ELEMENT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Own:
    """Algorithms of the user's own that are measured, too: their ``names``, and the ``modules`` that register them."""

    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Layout:
    """``processes`` of ``devices`` ranks each, shared equally by ``hosts``."""

    processes: int
    devices: int
    hosts: int = 1

    def __str__(self) -> str:
        return f"{self.processes}x{self.devices}" + (f" on {self.hosts} hosts" if self.hosts > 1 else "")

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.processes * self.devices

    @property
    def domains(self) -> tuple[int, ...]:
        """The memory domain of each rank."""
        return tuple(rank // self.devices for rank in range(self.ranks))

    @property
    def hosts_of_ranks(self) -> tuple[int, ...]:
        """The host of each rank."""
        return tuple(domain * self.hosts // self.processes for domain in self.domains)

    def choose(
        self, collective: str, nbytes: int, processors: int, profile: Profile = COMMODITY, own: Sequence[str] = ()
    ) -> Choice:
        """The tuner's choice for ``nbytes`` of input per rank, where the processes share so many processors.

        ``own``: algorithms of the user's own that it may take, too.
        """
        return tuner.choose(
            collective,
            self.domains,
            self.hosts_of_ranks,
            nbytes,
            DTYPE,
            processors=processors,
            profile=profile,
            also=own,
        )

    def refused(self, name: str) -> str:
        """Why an algorithm of the user's own does not serve these ranks; "" where it does."""
        algorithm = user.find(name)
        if algorithm is None or algorithm.collective not in COLLECTIVES:
            return f"what is measured is {', '.join(COLLECTIVES)}"
        try:
            tuner.choose(algorithm.collective, self.domains, self.hosts_of_ranks, ELEMENT_BYTES, DTYPE, name)
        except ValueError as error:
            return str(error)
        return ""


@dataclasses.dataclass(frozen=True)
class Cell:
    """``nbytes`` of input per rank; ``candidates`` are (algorithm, protocol)."""

    collective: str
    nbytes: int
    candidates: tuple[tuple[str, str], ...]

    @property
    def own(self) -> tuple[str, ...]:
        """Those of the algorithms that are the user's own."""
        return tuple(dict.fromkeys(name for name, _ in self.candidates if name not in ALGORITHMS))


def check(layouts: Sequence[Layout], own: Own) -> None:
    """JaxringError for an algorithm of the user's own that serves none of the layouts."""
    for name in own.names:
        reasons = [layout.refused(name) for layout in layouts]
        if all(reasons):
            raise JaxringError(f"{name} cannot be measured on {', '.join(map(str, layouts))}: {reasons[0]}.")


def cells(layout: Layout, sizes: Sequence[int], processors: int, own: Own = Own()) -> list[Cell]:
    """Every collective of every size that has candidates, for so many bytes of the larger of operand and result."""
    found = []
    served = [name for name in own.names if not layout.refused(name)]
    for collective in COLLECTIVES:
        for size in sizes:
            count = max(1, size // ELEMENT_BYTES // layout.ranks)
            nbytes = ELEMENT_BYTES * (count if collective == "all_gather" else count * layout.ranks)
            choice = layout.choose(collective, nbytes, processors, own=served)
            names = tuple(tuple(name.split("/")) for name, _ in choice.candidates)
            found.append(Cell(collective, nbytes, tuple((name, kind) for name, kind in names)))
    return list(dict.fromkeys(found))
