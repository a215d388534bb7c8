"""Which ranks do the same at the same time: one of each class then stands for all of it.

A symmetry is a group of permutations of the hosts that maps the schedule and the network onto themselves and leaves no
host in its place. Then what one rank does, its images do, at the same moment; so one rank of each class is played, and
its messages to another rank are those that the class's rank gets from its image.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from jaxring.plan.schedule import MEMORY_PEER, Buffer, Schedule

if TYPE_CHECKING:
    from jaxring.simulate.tile_sizes import Sizes

_INPUT, _OUTPUT = int(Buffer.INPUT), int(Buffer.OUTPUT)
# Tables of so many steps in all are compared completely, others for SAMPLES ranks drawn at random.
COMPLETE_STEPS, SAMPLES = 200_000, 8


class Symmetry:
    """``shift``: hosts h and h + ``period`` are alike, around the end. Otherwise h and h ^ m are, for every multiple m
    of ``period``, where the number of hosts is ``period`` times a power of two.

    ``width``: ranks of a host, which are consecutive. ``ranks``: those that stand for their classes.
    """

    def __init__(self, nranks: int, width: int, period: int, shift: bool) -> None:
        self.nranks, self.width, self.period, self.shift = nranks, width, period, shift
        self.order = nranks // (width * period)  # how many permutations the group has
        self._block = width * period
        if nranks % self._block or (not shift and self.order & (self.order - 1)):
            raise ValueError(f"{nranks} ranks have no such symmetry of {period} hosts of {width} ranks")
        self.ranks = range(self._block)

    def __str__(self) -> str:
        how = "shifts" if self.shift else "exchanges"
        return f"{how} by {self.period} host(s): {len(self.ranks)} of {self.nranks} ranks stand for all"

    def canonical(self, source: int, target: int) -> tuple[int, int]:
        """The image of both under the permutation that maps ``source`` to the rank that stands for it."""
        return source % self._block, self.move(target, -(source // self._block))

    def move(self, rank: int, by: int) -> int:
        """The image of ``rank`` under the permutation that maps block 0 to block ``by``."""
        block, place = divmod(rank, self._block)
        block = (block + by) % self.order if self.shift else block ^ abs(by)
        return block * self._block + place


def find(schedule: Schedule, sizes: Sizes, width: int, leaf: int) -> Symmetry | None:
    """The symmetry of the schedule on a cluster by which fewest ranks stand for all, or None.

    ``width``: ranks of a host; ``leaf``: hosts that share their first switches. Tables are compared for all ranks, or
    where there are too many steps for some drawn at random.
    """
    nranks = schedule.spec.nranks
    hosts = nranks // width
    period = 1 if leaf >= hosts else leaf
    if nranks % width or hosts % period or hosts == period:
        return None
    for shift in (True, False):
        order = hosts // period
        if not shift and (order & (order - 1) or period & (period - 1)):
            continue
        found = Symmetry(nranks, width, period, shift)
        if holds(schedule, sizes, found):
            return found
    return None


def holds(schedule: Schedule, sizes: Sizes, symmetry: Symmetry) -> bool:
    """Whether the tables of the ranks are images of those of the ranks that stand for them."""

    def same(place: int, block: int) -> bool:
        image = symmetry.move(place, block)
        return _signature(schedule, sizes, image, symmetry, block) == _signature(schedule, sizes, place, symmetry, 0)

    steps = sum(len(schedule.table(rank).steps) for rank in list(symmetry.ranks)[:1]) * schedule.spec.nranks
    if steps < COMPLETE_STEPS:
        return all(same(place, block) for block in range(1, symmetry.order) for place in symmetry.ranks)
    draw = random.Random(schedule.spec.nranks)
    chosen = [(draw.choice(symmetry.ranks), draw.randrange(1, symmetry.order)) for _ in range(SAMPLES)]
    return all(same(*each) for each in ((0, 1), (0, symmetry.order - 1), *chosen))


def _signature(schedule: Schedule, sizes: Sizes, rank: int, symmetry: Symmetry, block: int) -> list[tuple[object, ...]]:
    """What of the rank's steps decides about time, with its peers moved back by ``block``.

    The order of sources decides about the result, but not about time.
    """
    table = schedule.table(rank)
    pieces = schedule.pieces
    peers = [(symmetry.move(peer & (MEMORY_PEER - 1), -block), peer & MEMORY_PEER) for peer in table.peers.tolist()]

    def length(buffer: int, chunk: int) -> int:
        return sizes.of_piece[chunk % pieces] if buffer in (_INPUT, _OUTPUT) else chunk

    found: list[tuple[object, ...]] = [tuple(table.lane_begin.tolist())]
    for kind, flags, src, dst, src_chunk, dst_chunk, recv, send, receives, sends in table.steps.tolist():
        sources = tuple(sorted(peers[recv : recv + receives]))
        lengths = length(src, src_chunk), length(dst, dst_chunk)
        found.append((kind, flags, src, dst, lengths, sources, tuple(peers[send : send + sends])))
    return found
