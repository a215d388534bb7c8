"""How many elements of each chunk a tile moves, as `ffi/plan/plan.h` cuts blocks into pieces and pieces into tiles."""

from __future__ import annotations

import dataclasses
import itertools

from jaxring.plan import dtypes
from jaxring.plan.schedule import Schedule

# Pieces of a block begin at multiples of this many bytes.
PIECE_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Sizes:
    """``lengths``: the different lengths of pieces, in elements; ``of_piece``: which of them each piece has.

    ``element``, ``partial``, ``result``: bytes of an element, of one of an incomplete reduction, and of the result's.
    ``tile``: elements of the longest message's chunk. ``tiles``: how often a lane runs its steps for a collective,
    which is made ``times`` times, one after another.
    """

    element: int
    partial: int
    tile: int
    tiles: int
    lengths: tuple[int, ...]
    of_piece: tuple[int, ...]
    result: int
    times: int = 1

    def elements(self) -> list[list[int]]:
        """By length and tile."""
        tiles = [i * self.tile for i in range(self.tiles)]
        return [[max(0, min(self.tile, length - begin)) for begin in tiles] * self.times for length in self.lengths]


def cut(schedule: Schedule, nbytes: int, dtype: str, tile_bytes: int, equal: bool = False, result: str = "") -> Sizes:
    """The sizes for ``nbytes`` of input per rank. ``equal``: all pieces get the length of the longest one.

    ``result``: the dtype that an epilogue casts results to; empty where they have the data's.
    """
    element = dtypes.element_bytes(dtype)
    result_bytes = dtypes.element_bytes(result or dtype)
    folds = schedule.spec.facts.reduces
    partial = dtypes.accumulator_bytes(dtype) if folds else element
    total = -(-nbytes // element)
    block = -(-total // schedule.in_blocks)
    unit = max(1, PIECE_BYTES // min(element, result_bytes))
    units = -(-block // unit)
    bounds = [min(block, units * piece // schedule.pieces * unit) for piece in range(schedule.pieces + 1)]
    sizes = [after - before for before, after in itertools.pairwise(bounds)]
    if equal:
        sizes = [max(sizes)] * len(sizes)
    lengths = tuple(sorted(set(sizes)))
    number = {length: index for index, length in enumerate(lengths)}
    tile = max(1, tile_bytes // (max(element, partial, result_bytes) * schedule.group))
    tiles = max(1, -(-lengths[-1] // tile))
    return Sizes(element, partial, tile, tiles, lengths, tuple(number[size] for size in sizes), result_bytes)
