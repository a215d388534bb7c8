"""Collectives along given trees, one lane and one piece of the data for each: how trees that were found become steps.

Broadcast has a piece for each tree. All-gather and reduce-scatter have as many trees for each rank, the first rank's
before the second's; they are rooted at the rank whose data they carry. In these, data goes one way only, and a rank
turns to the next tile as soon as it has passed one on.

An all-reduce goes up a tree and down again, and a lane that waited for each tile to come down would use one level of
its tree at a time. So each tree has several pieces, which follow each other in waves: a rank sends the next ones up
before it takes the first from above, twice as many as it lies deep.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.algorithms import custom
from jaxring.plan.algorithms.common import Source, fold, messages, out, read, receive
from jaxring.plan.collectives import Root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.schedule import Peer, Schedule, Spec, Step


WAVES = 16


@dataclasses.dataclass(frozen=True)
class TreeLanes:
    """``trees``: for each lane each rank's parent, -1 for the root. Called as `register_algorithm` calls its ``lanes``,
    with `pieces` as its ``pieces``. ``waves``: pieces of each tree in an all-reduce.

    Raises ValueError for what is no tree over all ranks. A tree that is listed twice carries twice as much.
    """

    trees: tuple[tuple[int, ...], ...]
    waves: int = WAVES

    def __post_init__(self) -> None:
        for number, parents in enumerate(self.trees):
            if parents.count(-1) != 1 or not all(-1 <= parent < len(parents) for parent in parents):
                raise ValueError(f"tree {number} needs one root, and parents among its {len(parents)} ranks")
            for rank in range(len(parents)):
                at, steps = rank, 0
                while parents[at] >= 0:
                    at, steps = parents[at], steps + 1
                    if steps > len(parents):
                        raise ValueError(f"tree {number} leads rank {rank} round in a circle")

    @functools.cached_property
    def depths(self) -> list[list[int]]:
        """For each tree, how far each rank is from its root."""

        def depth(parents: tuple[int, ...], rank: int) -> int:
            steps = 0
            while parents[rank] >= 0:
                rank, steps = parents[rank], steps + 1
            return steps

        return [[depth(parents, rank) for rank in range(len(parents))] for parents in self.trees]

    @functools.cached_property
    def children(self) -> list[list[list[int]]]:
        """For each tree, each rank's children, in the order of their numbers."""
        found = []
        for parents in self.trees:
            below: list[list[int]] = [[] for _ in parents]
            for rank, parent in enumerate(parents):
                if parent >= 0:
                    below[parent].append(rank)
            found.append(below)
        return found

    def __call__(self, spec: Spec, rank: int) -> Sequence[Sequence[Step]]:
        """The lanes of a rank. Raises ValueError where the trees do not fit the call."""
        if any(len(parents) != spec.nranks for parents in self.trees):
            raise ValueError(f"these trees have {len(self.trees[0])} ranks, and the call has {spec.nranks}")
        if spec.collective == "all_reduce":
            return [self._all_reduce(tree, rank) for tree in range(len(self.trees))]
        lane = _LANES.get(spec.collective)
        if lane is None:
            raise ValueError(f"trees serve all_reduce, {', '.join(_LANES)}, and not {spec.collective}")
        pieces = self.pieces(spec)
        for tree, parents in enumerate(self.trees):
            root = spec.root if spec.facts.root is Root.SOURCE else tree // pieces
            if parents[root] >= 0:
                raise ValueError(f"tree {tree} has the root {parents.index(-1)}, and the data of rank {root}")
        return [lane(self._place(tree, rank), tree // pieces, tree % pieces, pieces) for tree in range(len(self.trees))]

    def pieces(self, spec: Spec) -> int:
        """Into how many pieces a block is cut."""
        if spec.collective == "all_reduce":
            return len(self.trees) * self.waves
        return len(self.trees) // max(spec.in_blocks, spec.out_blocks)

    def _all_reduce(self, tree: int, rank: int) -> list[Step]:
        """A timetable: piece n leaves depth x upwards at time n - x, and comes there from above at time n + x.

        Each message is taken one time after it was sent, so that no connection has to hold more than two.
        """
        place, depth = self._place(tree, rank), self.depths[tree][rank]
        pieces = range(tree * self.waves, (tree + 1) * self.waves)
        if place.parent < 0:
            steps = (fold(rank, piece, place.sources, out(piece), place.below, final=True) for piece in pieces)
            return [step for row in steps for step in row]
        above = messages([place.parent])
        timed: list[tuple[int, int, list[Step]]] = []
        for wave, piece in enumerate(pieces):
            timed.append((wave - depth, 0, fold(rank, piece, place.sources, send=above)))
            timed.append((wave + depth, 1, [receive(place.parent, piece, place.below)]))
        return [step for _, _, row in sorted(timed, key=lambda each: each[:2]) for step in row]

    def _place(self, tree: int, rank: int) -> _Place:
        children = self.children[tree]
        # What a leaf sends is its own input, and what others send is a fold already.
        sources = [(peer, False) for peer in messages([rank])]
        sources += [(peer, bool(children[peer.rank])) for peer in messages(children[rank])]
        return _Place(rank, self.trees[tree][rank], messages(children[rank]), sources)


class _Place(NamedTuple):
    """A rank in a tree."""

    rank: int
    parent: int
    below: tuple[Peer, ...]
    sources: list[Source]


def _all_gather(place: _Place, block: int, piece: int, pieces: int) -> list[Step]:
    chunk = block * pieces + piece
    if place.parent < 0:
        return [read(place.rank, place.rank, piece, chunk, place.below)]
    return [receive(place.parent, chunk, place.below)]


def _reduce_scatter(place: _Place, block: int, piece: int, pieces: int) -> list[Step]:
    chunk = block * pieces + piece
    if place.parent < 0:
        return fold(place.rank, chunk, place.sources, out(piece), final=True)
    return fold(place.rank, chunk, place.sources, send=messages([place.parent]))


_LANES = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _all_gather,
}


def build(spec: Spec, trees: Sequence[Sequence[int]], waves: int = WAVES) -> Schedule:
    """The verified schedule of `spec` along these trees. ``spec.algorithm`` is a name of the caller's choice."""
    lanes = TreeLanes(tuple(map(tuple, trees)), waves)
    scratch = 1 if spec.collective in ("all_reduce", "reduce_scatter") else 0
    return custom(spec, functools.partial(lanes, spec), lanes.pieces(spec), len(trees), scratch)
