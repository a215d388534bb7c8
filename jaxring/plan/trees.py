"""All-reduce along given trees, one lane and one piece of the data for each: how trees that were found become steps."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from jaxring.plan.algorithms import custom
from jaxring.plan.algorithms.common import fold, messages, out, receive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.schedule import Schedule, Spec, Step


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
        """The lanes of a rank. Raises ValueError where the trees are those of another number of ranks."""
        if any(len(parents) != spec.nranks for parents in self.trees):
            raise ValueError(f"these trees have {len(self.trees[0])} ranks, and the call has {spec.nranks}")
        return [self._lane(tree, rank) for tree in range(len(self.trees))]

    def _lane(self, tree: int, rank: int) -> list[Step]:
        parent, children = self.trees[tree][rank], self.children[tree]
        down = messages(children[rank])
        # What a leaf sends is its own input, and what others send is a fold already.
        sources = [(peer, False) for peer in messages([rank])]
        sources += [(peer, bool(children[peer.rank])) for peer in down]
        if parent < 0:
            return fold(rank, tree, sources, out(tree), down, final=True)
        return [*fold(rank, tree, sources, send=messages([parent])), receive(parent, tree, down)]


def all_reduce(spec: Spec, trees: Sequence[Sequence[int]]) -> Schedule:
    """The verified schedule of `spec` along these trees. ``spec.algorithm`` is a name of the caller's choice."""
    lanes = TreeLanes(tuple(map(tuple, trees)))
    return custom(spec, functools.partial(lanes, spec), len(trees), len(trees), scratch_chunks=1)
