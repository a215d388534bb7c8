"""What each collective is: one record with all that the planner, the engines and JAX's rules know of it.

The schedules that compute a collective are in `jaxring.plan.algorithms`. How it is differentiated, and what `jax.vmap`
makes of it, are in `jaxring.tracing`.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

Pairs = tuple[tuple[int, int], ...]


class Moved(NamedTuple):
    """A block of a result that is block ``block`` of the operand of rank ``rank``."""

    rank: int
    block: int


class Folded(NamedTuple):
    """A block of a result that is the reduction of block ``block`` of the operands of all ranks."""

    block: int


# None stands for a block of zeros.
Source = Moved | Folded | None


class Arguments(NamedTuple):
    """The arguments of a collective that decide where its results come from."""

    ranks: int
    root: int = 0
    pairs: Pairs = ()


class Root(enum.Enum):
    """What a root has that other ranks do not: the operand that counts, or the result."""

    NONE = enum.auto()
    SOURCE = enum.auto()
    TARGET = enum.auto()


class PhaseKind(enum.Enum):
    """A part of a collective as `jaxring.plan.cost` prices it: partial results are folded, or values are spread."""

    FOLD = "fold"
    SPREAD = "spread"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective.

    ``blocks_in``, ``blocks_out``: whether a rank's operand, its result, is one block for each rank; else it is one.
    ``results``: where each block of the result of a rank comes from.
    ``phases``: what is priced, in order. A collective that folds takes an ``op``.
    ``root``: whether one rank is special, and in what.
    ``pairs``: it goes by (source, target) pairs of ranks.
    ``invariant``: all ranks get the same value.
    ``in_place``: the engine may write the result to the operand's memory.
    ``needs_all``: no rank can end before all have begun, so waiting for all of them first delays no rank.
    ``bus_factor``: bus bandwidth over algorithm bandwidth, by the number of ranks, as nccl-tests defines it
    (doc/PERFORMANCE.md).
    ``gpu_fused``: the number of the CUDA engine's fused kernel for ranks that address each other's memory, or None.
    ``gpu_multicast``: the number of its kernel for NVLink switches that reduce and store to all GPUs, or None.
    ``schedules_of``: the name of the collective whose schedules it uses: its own, or another's.
    ``half``: the half of a message that it is: "both", "send" or "recv".
    ``ragged``: the sizes of blocks are known at run time only, and its operand is rows.
    ``side_effect``: it is done even if its result is not used.
    ``has_call``: whether programs have a custom call of its name.
    """

    name: str
    blocks_in: bool
    blocks_out: bool
    results: Callable[[Arguments, int], list[Source]]
    phases: tuple[PhaseKind, ...]
    root: Root
    pairs: bool
    invariant: bool
    in_place: bool
    needs_all: bool
    bus_factor: Callable[[int], float]
    gpu_fused: int | None
    gpu_multicast: int | None
    schedules_of: str = ""
    half: str = "both"
    ragged: bool = False
    side_effect: bool = False
    has_call: bool = True

    def __post_init__(self) -> None:
        if not self.schedules_of:
            object.__setattr__(self, "schedules_of", self.name)

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction."""
        return PhaseKind.FOLD in self.phases

    @property
    def target(self) -> str:
        """The name of the custom call in programs."""
        return f"jaxring_{self.name}"

    @property
    def uncaptured_target(self) -> str:
        """The same on GPUs, where XLA must not capture the call into a CUDA graph."""
        return f"jaxring_uncaptured_{self.name}"

    @property
    def without_blocks(self) -> bool:
        """Whether its operand and its result are the same for any number of ranks, and name no rank but the root."""
        return not (self.blocks_in or self.blocks_out or self.pairs)

    def in_blocks(self, ranks: int) -> int:
        """The blocks of a rank's operand."""
        return ranks if self.blocks_in else 1

    def out_blocks(self, ranks: int) -> int:
        """The blocks of a rank's result."""
        return ranks if self.blocks_out else 1

    def total(self, ranks: int, nbytes: int) -> int:
        """Bytes of the whole vector, where a rank's operand has ``nbytes``."""
        return nbytes * ranks if self.blocks_out and not self.blocks_in else nbytes

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a block of an operand of this shape, whose leading axis counts ranks where there are several."""
        return shape[1:] if self.blocks_in and not self.ragged else shape

    def result_shape(self, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """The shape of the result of an operand of this shape. The leading axis counts ranks where there are blocks."""
        block = self.block_shape(shape)
        return (ranks, *block) if self.blocks_out else block


def _all_reduce(given: Arguments, rank: int) -> list[Source]:
    del given, rank
    return [Folded(0)]


def _reduce(given: Arguments, rank: int) -> list[Source]:
    return [Folded(0) if rank == given.root else None]


def _reduce_scatter(given: Arguments, rank: int) -> list[Source]:
    del given
    return [Folded(rank)]


def _all_gather(given: Arguments, rank: int) -> list[Source]:
    del rank
    return [Moved(source, 0) for source in range(given.ranks)]


def _gather(given: Arguments, rank: int) -> list[Source]:
    return _all_gather(given, rank) if rank == given.root else [None] * given.ranks


def _all_to_all(given: Arguments, rank: int) -> list[Source]:
    return [Moved(source, rank) for source in range(given.ranks)]


def _broadcast(given: Arguments, rank: int) -> list[Source]:
    del rank
    return [Moved(given.root, 0)]


def _scatter(given: Arguments, rank: int) -> list[Source]:
    return [Moved(given.root, rank)]


def _permute(given: Arguments, rank: int) -> list[Source]:
    return [next((Moved(source, 0) for source, target in given.pairs if target == rank), None)]


def _once(ranks: int) -> float:
    del ranks
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


FOLD, SPREAD = PhaseKind.FOLD, PhaseKind.SPREAD

# fmt: off
_OWN = (
    Collective(
        name="all_reduce", blocks_in=False, blocks_out=False, results=_all_reduce, phases=(FOLD, SPREAD),
        root=Root.NONE, pairs=False, invariant=True, in_place=True, needs_all=True, bus_factor=_twice,
        gpu_fused=1, gpu_multicast=0,
    ),
    Collective(
        name="all_gather", blocks_in=False, blocks_out=True, results=_all_gather, phases=(SPREAD,),
        root=Root.NONE, pairs=False, invariant=False, in_place=False, needs_all=True, bus_factor=_all_but_own,
        gpu_fused=3, gpu_multicast=2,
    ),
    Collective(
        name="reduce_scatter", blocks_in=True, blocks_out=False, results=_reduce_scatter, phases=(FOLD,),
        root=Root.NONE, pairs=False, invariant=False, in_place=False, needs_all=True, bus_factor=_all_but_own,
        gpu_fused=2, gpu_multicast=1,
    ),
    Collective(
        name="all_to_all", blocks_in=True, blocks_out=True, results=_all_to_all, phases=(SPREAD,),
        root=Root.NONE, pairs=False, invariant=False, in_place=False, needs_all=True, bus_factor=_all_but_own,
        gpu_fused=5, gpu_multicast=None,
    ),
    Collective(
        name="broadcast", blocks_in=False, blocks_out=False, results=_broadcast, phases=(SPREAD,),
        root=Root.SOURCE, pairs=False, invariant=True, in_place=False, needs_all=False, bus_factor=_once,
        gpu_fused=4, gpu_multicast=None,
    ),
    Collective(
        name="reduce", blocks_in=False, blocks_out=False, results=_reduce, phases=(FOLD,),
        root=Root.TARGET, pairs=False, invariant=False, in_place=False, needs_all=False, bus_factor=_once,
        gpu_fused=None, gpu_multicast=None,
    ),
    Collective(
        name="gather", blocks_in=False, blocks_out=True, results=_gather, phases=(SPREAD,),
        root=Root.TARGET, pairs=False, invariant=False, in_place=False, needs_all=False, bus_factor=_all_but_own,
        gpu_fused=None, gpu_multicast=None,
    ),
    Collective(
        name="scatter", blocks_in=True, blocks_out=False, results=_scatter, phases=(SPREAD,),
        root=Root.SOURCE, pairs=False, invariant=False, in_place=False, needs_all=False, bus_factor=_all_but_own,
        gpu_fused=None, gpu_multicast=None,
    ),
    Collective(
        name="permute", blocks_in=False, blocks_out=False, results=_permute, phases=(SPREAD,),
        root=Root.NONE, pairs=True, invariant=False, in_place=False, needs_all=False, bus_factor=_once,
        gpu_fused=None, gpu_multicast=None,
    ),
)
# fmt: on

# The collectives that have schedules of their own.
COLLECTIVES: dict[str, Collective] = {each.name: each for each in _OWN}


def _as(schedules_of: str, name: str, **changes: bool | str) -> Collective:
    own: dict[str, bool | str | None] = {"in_place": False, "gpu_fused": None, "gpu_multicast": None}
    return dataclasses.replace(COLLECTIVES[schedules_of], name=name, **own | changes)  # type: ignore[arg-type]


# Everything that a program may call: the others use the schedules of one of the collectives.
CALLS: dict[str, Collective] = COLLECTIVES | {
    each.name: each
    for each in (
        _as("all_reduce", "barrier", side_effect=True),
        _as("all_reduce", "pcast", needs_all=False, has_call=False),
        _as("all_to_all", "ragged_all_to_all", needs_all=False, ragged=True),
        _as("permute", "send", half="send", side_effect=True),
        _as("permute", "recv", half="recv", side_effect=True),
    )
}
