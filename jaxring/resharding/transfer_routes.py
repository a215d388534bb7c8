"""Which bytes go from which process to which, for a whole tree of arrays: pure, and the same on every process.

A process that needs a region of an array and holds it copies it. Every other part of the region is sent to it once,
however many of its devices need it, by the process that has least to send among those that hold it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# The first index and the one after the last, of each dimension.
Region = tuple[tuple[int, int], ...]
# The different regions that each process has on its devices.
Layout = dict[int, tuple[Region, ...]]

# A round's messages are made of blocks of at most this part of what a round holds, and of at least so many bytes.
_BLOCKS_PER_ROUND = 4
_LEAST_BLOCK = 4096
_LEAST_CAPACITY = 4096


class Piece(NamedTuple):
    """A region of array ``leaf`` that lies in one region ``held`` of its source and in one region ``wanted``."""

    leaf: int
    region: Region
    held: Region
    wanted: Region


class Block(NamedTuple):
    """A part of a piece: what one copy moves."""

    leaf: int
    region: Region
    held: Region
    wanted: Region
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array: its shape, the name of its dtype and the bytes of an element, and its two layouts."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    source: Layout
    target: Layout


@dataclasses.dataclass(frozen=True)
class Routes:
    """``copies`` within each process, ``streams`` of pieces between processes, and the rounds that these go in.

    In each of ``rounds`` no process sends or receives more than ``capacity`` bytes. A block has at most
    ``block_bytes``, or one element.
    """

    leaves: tuple[Leaf, ...]
    copies: Mapping[int, list[Piece]]
    streams: Mapping[tuple[int, int], list[Piece]]
    nbytes: Mapping[tuple[int, int], int]
    rounds: int
    capacity: int
    block_bytes: int

    @property
    def means(self) -> tuple[Any, ...]:
        """Equal in processes whose arrays and messages to each other are."""
        arrays = [(leaf.shape, leaf.dtype) for leaf in self.leaves]
        return arrays, sorted(self.streams.items()), self.rounds, self.capacity

    def blocks(self, source: int, target: int) -> Iterator[tuple[int, Block]]:
        """The blocks of a stream in their order, each with its round. Both ends cut alike."""
        total, offset = self.nbytes.get((source, target), 0), 0
        for piece in self.streams.get((source, target), ()):
            itemsize = self.leaves[piece.leaf].itemsize
            for region in cut(piece.region, max(1, self.block_bytes // itemsize)):
                nbytes = elements(region) * itemsize
                yield offset * self.rounds // total, Block(piece.leaf, region, piece.held, piece.wanted, nbytes)
                offset += nbytes


def within(index: Sequence[slice], shape: tuple[int, ...]) -> Region:
    """The region that these slices take of an array of this shape."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def elements(region: Region) -> int:
    """How many elements a region has."""
    return math.prod(stop - start for start, stop in region)


def cut(region: Region, most: int) -> Iterator[Region]:
    """Parts of a region of at most ``most`` elements each, in the order of their elements."""
    behind = 1
    dimension = len(region)
    while dimension > 0 and behind * (region[dimension - 1][1] - region[dimension - 1][0]) <= most:
        dimension -= 1
        behind *= region[dimension][1] - region[dimension][0]
    if dimension == 0:
        yield region
        return
    start, stop = region[dimension - 1]
    rows = max(1, most // behind)
    for index in itertools.product(*(range(*span) for span in region[: dimension - 1])):
        outer = tuple((i, i + 1) for i in index)
        for first in range(start, stop, rows):
            yield (*outer, (first, min(first + rows, stop)), *region[dimension:])


def _corners(regions: Sequence[Region], dimensions: int) -> np.ndarray:
    return np.array(regions, np.int64).reshape(len(regions), dimensions, 2)


def _overlaps(wanted: Region, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the regions ``held``, int64[n, dimensions, 2], overlap ``wanted``, and what both have."""
    both = _corners([wanted], held.shape[1])
    starts, stops = np.maximum(held[..., 0], both[..., 0]), np.minimum(held[..., 1], both[..., 1])
    found = np.flatnonzero(np.all(starts < stops, axis=1))
    return found, np.stack([starts[found], stops[found]], axis=-1)


def plan(leaves: Sequence[Leaf], round_bytes: int) -> Routes:
    """The routes of a tree, in rounds in which a process sends and receives about ``round_bytes`` at most."""
    copies: dict[int, list[Piece]] = collections.defaultdict(list)
    streams: dict[tuple[int, int], list[Piece]] = collections.defaultdict(list)
    nbytes: dict[tuple[int, int], int] = collections.defaultdict(int)
    sent: dict[int, int] = collections.defaultdict(int)
    came: dict[int, int] = collections.defaultdict(int)
    for number, leaf in enumerate(leaves):
        holders: dict[Region, list[int]] = collections.defaultdict(list)
        for process, regions in sorted(leaf.source.items()):
            for region in regions:
                holders[region].append(process)
        held = list(holders)
        corners = _corners(held, len(held[0]))
        for process, regions in sorted(leaf.target.items()):
            for wanted in regions:
                for index, region in zip(*_overlaps(wanted, corners), strict=True):
                    shared = tuple((int(start), int(stop)) for start, stop in region)
                    piece = Piece(number, shared, held[index], wanted)
                    having = holders[held[index]]
                    if process in having:
                        copies[process].append(piece)
                        continue
                    # Among those that have sent equally much, the next in a circle: neighbours then choose differently.
                    source = min(having, key=lambda p: (sent[p], (p - process) % (max(having) + 1)))
                    size = elements(shared) * leaf.itemsize
                    streams[source, process].append(piece)
                    nbytes[source, process] += size
                    sent[source] += size
                    came[process] += size
    most = max([*sent.values(), *came.values()], default=0)
    rounds = max(1, -(-most // round_bytes)) if most else 0
    peers: dict[int, int] = collections.Counter(end for route in streams for end in route)
    widest = max(peers.values(), default=1)
    block_bytes = max(_LEAST_BLOCK, round_bytes // (_BLOCKS_PER_ROUND * widest))
    # One round's bytes are rounded up, and all trees of several rounds have one capacity, so that most trees need no
    # program of their own. A stream's blocks of a round begin within an equal part of it; the last may end beyond.
    capacity = max(_LEAST_CAPACITY, 1 << max(0, most - 1).bit_length())
    if rounds > 1:
        capacity = round_bytes + widest * block_bytes
    return Routes(tuple(leaves), dict(copies), dict(streams), dict(nbytes), rounds, capacity, block_bytes)
