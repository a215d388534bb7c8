"""Collectives that only move, as copies that a GPU's copy engines do: which block of whose input goes where.

The algorithm is called `copy_engine` and is for ranks whose GPUs address each other's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.collectives import COLLECTIVES, Folded, Moved

if TYPE_CHECKING:
    from jaxring.plan.schedule import Spec

NAME = "copy_engine"
SERVED = frozenset(name for name, collective in COLLECTIVES.items() if not collective.reduces)


class Move(NamedTuple):
    """One copy: from ``block`` of the own input, or of zeros if that is -1, to block ``to`` of ``rank``'s output."""

    block: int
    rank: int
    to: int


class Moves(NamedTuple):
    """One rank's part. ``moves``: in the order in which they are made; ``arrivals``: the blocks of its own output that
    other ranks send."""

    moves: list[Move]
    arrivals: list[int]


def sources(spec: Spec, rank: int) -> list[Moved | None]:
    """For each block of ``rank``'s output the rank and the block of its input that it comes from; None for zeros."""
    found: list[Moved | None] = []
    for source in spec.results(rank):
        if isinstance(source, Folded):
            raise ValueError(f"{spec.collective} is more than copies: use one of {', '.join(sorted(SERVED))}")
        found.append(source)
    return found


def moves(spec: Spec, rank: int) -> Moves:
    """What ``rank`` copies, and what it is sent."""
    n = spec.nranks
    every = [(target, block, source) for target in range(n) for block, source in enumerate(sources(spec, target))]
    mine = [
        Move(source[1], target, block) for target, block, source in every if source is not None and source[0] == rank
    ]
    # Each rank begins with another one, so that no rank is everybody's first.
    mine.sort(key=lambda move: ((move.rank - rank) % n, move.to))
    own = [(block, source) for target, block, source in every if target == rank]
    zeros = [Move(-1, rank, block) for block, source in own if source is None]
    return Moves(mine + zeros, [block for block, source in own if source is not None and source[0] != rank])
