"""The copies at the ends of the routes: from shards to messages, from messages to results, and within a process."""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.resharding.transfer_routes import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jaxring.resharding.transfer_routes import Block, Region, Routes

# The parts of one array that a process has in its memory.
Parts = dict["Region", np.ndarray]
_Copy = tuple[np.ndarray, np.ndarray]

_ALIGNMENT = 64
# More bytes than these are copied by several threads, about so many at a time, in pieces of a MiB or less.
_TASK_BYTES = 4 << 20
_PIECE_BYTES = 1 << 20
_WORKERS = min(8, os.cpu_count() or 1)
# What an element is while it is moved: NumPy copies its own types fastest.
_UNITS: Mapping[int, np.dtype[Any]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def unit(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type of the same size that stands for ``dtype``."""
    return _UNITS.get(dtype.itemsize, dtype)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array of any content, whose memory jax takes over as it is."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


def extent(region: Region) -> tuple[int, ...]:
    """The shape of a region."""
    return tuple(stop - start for start, stop in region)


def _within(parts: Parts, outer: Region, region: Region) -> np.ndarray:
    part: np.ndarray = parts[outer][inside(outer, region)]
    return part


@functools.lru_cache(maxsize=4096)
def inside(outer: Region, region: Region) -> Any:
    """The index of a region in an array that is the region ``outer``."""
    # With an ellipsis the part of an array of no dimensions is an array, too.
    return (*(slice(a - c, b - c) for (a, b), (c, _) in zip(region, outer, strict=True)), ...)


class Copier:
    """Copies of a process: ``held`` are the parts that it has of each array, ``results`` those that it is to have."""

    def __init__(self, routes: Routes, held: Sequence[Parts], results: Sequence[Parts]) -> None:
        self._routes, self._held, self._results = routes, held, results
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def local(self, process: int) -> None:
        """What the process has and needs; a part that is in no result stays where it is."""

        def copies() -> Iterator[_Copy]:
            for leaf, region, held, wanted in self._routes.copies.get(process, ()):
                if wanted not in self._results[leaf]:
                    continue
                for part in cut(region, max(1, _PIECE_BYTES // self._routes.leaves[leaf].itemsize)):
                    yield _within(self._results[leaf], wanted, part), _within(self._held[leaf], held, part)

        self._copy(copies())

    def pack(self, blocks: Iterable[Block], memory: np.ndarray) -> None:
        """Writes blocks behind each other into ``memory``, uint8[n]."""
        self._copy(
            (_message(memory, at, source), source)
            for at, source in _places(blocks, lambda block: _within(self._held[block.leaf], block.held, block.region))
        )

    def unpack(self, blocks: Iterable[Block], memory: np.ndarray) -> None:
        """Takes them from there."""
        self._copy(
            (to, _message(memory, at, to))
            for at, to in _places(blocks, lambda block: _within(self._results[block.leaf], block.wanted, block.region))
        )

    def _copy(self, copies: Iterable[_Copy]) -> None:
        tasks: list[list[_Copy]] = [[]]
        waiting = 0
        for copy in copies:
            tasks[-1].append(copy)
            waiting += copy[0].nbytes
            if waiting >= _TASK_BYTES:
                tasks.append([])
                waiting = 0
        if len(tasks) <= 2 or _WORKERS == 1:
            for task in tasks:
                _copy_all(task)
            return
        if self._pool is None:
            # NumPy copies without the interpreter's lock.
            self._pool = concurrent.futures.ThreadPoolExecutor(_WORKERS)
        for _ in self._pool.map(_copy_all, tasks):
            pass


def _places(blocks: Iterable[Block], part: Any) -> Iterator[tuple[int, np.ndarray]]:
    at = 0
    for block in blocks:
        array = part(block)
        yield at, array
        at += array.nbytes


def _message(memory: np.ndarray, at: int, like: np.ndarray) -> np.ndarray:
    return np.ndarray(like.shape, like.dtype, memory.data, at)


def _copy_all(copies: Iterable[_Copy]) -> None:
    for to, source in copies:
        to[...] = source
