"""Collectives along given trees, one lane and one piece of the data for each: how trees that were found become steps.

All-reduce and broadcast have a piece for each tree. All-gather and reduce-scatter have as many trees for each rank, the
first rank's before the second's; they are rooted at the rank whose data they carry.
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


@dataclasses.dataclass(frozen=True)
class TreeLanes:
    """``trees``: for each lane each rank's parent, -1 for the root. Called as `register_algorithm` calls its ``lanes``.

    Raises ValueError for what is no tree over all ranks. A tree that is listed twice carries twice as much.
    """

    trees: tuple[tuple[int, ...], ...]

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
    def children(self) -> list[list[list[int]]]:
        """Of each tree each rank's children, in the order of their numbers."""
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
        lane = _LANES.get(spec.collective)
        if lane is None:
            raise ValueError(f"trees serve {', '.join(_LANES)}, and not {spec.collective}")
        pieces = self.pieces(spec)
        rooted = spec.facts.root is Root.SOURCE
        for tree, parents in enumerate(self.trees):
            root = spec.root if rooted else tree // pieces
            if spec.collective != "all_reduce" and parents[root] >= 0:
                raise ValueError(f"tree {tree} has the root {parents.index(-1)}, and the data of rank {root}")
        return [lane(self._place(tree, rank), tree // pieces, tree % pieces, pieces) for tree in range(len(self.trees))]

    def pieces(self, spec: Spec) -> int:
        """Into how many pieces a block is cut: one for each tree that carries some of it."""
        return len(self.trees) // max(spec.in_blocks, spec.out_blocks)

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


def _all_reduce(place: _Place, _: int, piece: int, __: int) -> list[Step]:
    if place.parent < 0:
        return fold(place.rank, piece, place.sources, out(piece), place.below, final=True)
    up = fold(place.rank, piece, place.sources, send=messages([place.parent]))
    return [*up, receive(place.parent, piece, place.below)]


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
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _all_gather,
}


def build(spec: Spec, trees: Sequence[Sequence[int]]) -> Schedule:
    """The verified schedule of `spec` along these trees. ``spec.algorithm`` is a name of the caller's choice."""
    lanes = TreeLanes(tuple(map(tuple, trees)))
    scratch = 1 if spec.collective in ("all_reduce", "reduce_scatter") else 0
    return custom(spec, functools.partial(lanes, spec), lanes.pieces(spec), len(trees), scratch)
