"""What is measured: a collective of one size. Sizes and busbw factors as in nccl-tests (its doc/PERFORMANCE.md)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from jaxring.plan import collectives
from jaxring.plan.collectives import Arguments, Collective, Folded
from jaxring.plan.dtypes import numpy_dtype

if TYPE_CHECKING:
    from jaxring.typing import Op

# Those that can be measured.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "broadcast")

# Those that results are checked of.
OPERATIONS = ("sum", "mean", "max", "min", "prod")


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement. ``nbytes`` is the larger of a rank's operand and result, as nccl-tests counts sizes.

    So a message of an all_to_all, what one rank has for another, is an n-th of it.
    """

    collective: str
    op: Op
    dtype: str
    nbytes: int
    inplace: bool = False  # the operand is donated to the result
    chain: int = 1  # dependent collectives in one program

    @property
    def facts(self) -> Collective:
        """The collective's record."""
        return collectives.COLLECTIVES[self.collective]

    @property
    def name(self) -> str:
        """The collective's name."""
        return self.collective

    @property
    def what(self) -> str:
        """The collective, with the operation where it reduces, and the data type."""
        return " ".join([self.collective, *[self.op] * self.reduces, self.dtype])

    @property
    def reduces(self) -> bool:
        """Whether the operation has a meaning."""
        return self.facts.reduces

    @property
    def checked(self) -> bool:
        """Whether results are compared with `expected`, which is that of one collective."""
        return self.chain == 1

    def count(self, ranks: int) -> int:
        """Elements of a rank's operand; whole blocks where the collective counts ranks."""
        elements = self.nbytes // itemsize(self.dtype)
        if self.facts.blocks_in:
            return max(1, elements // ranks) * ranks
        return max(1, elements // self.facts.out_blocks(ranks))

    def moved(self, ranks: int) -> int:
        """The size that the bandwidths count: that of `count` elements."""
        return self.facts.total(ranks, self.count(ranks) * itemsize(self.dtype))

    def bus_factor(self, ranks: int) -> float:
        """busbw / algbw."""
        return self.facts.bus_factor(ranks)

    def memory_traffic(self, ranks: int) -> int:
        """Bytes that must be read and written, all ranks together, where every operand is read once and every result
        written once: what a machine with one memory cannot go below."""
        operand = self.count(ranks) * itemsize(self.dtype)
        result = operand // self.facts.in_blocks(ranks) * self.facts.out_blocks(ranks)
        return ranks * (operand + result)


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return int(np.dtype(numpy_dtype(dtype)).itemsize)


def operand(case: Case, ranks: int, rank: int) -> np.ndarray:
    """A rank's operand: small whole numbers, so that sums are exact in any order."""
    return _values(case, rank, 0, case.count(ranks))


def _values(case: Case, rank: int, first: int, count: int) -> np.ndarray:
    index = np.arange(first, first + count, dtype=np.int64)
    return ((index * 7 + rank * 5) % 3).astype(numpy_dtype(case.dtype))


def expected(case: Case, ranks: int, rank: int) -> np.ndarray:
    """A rank's result of one collective over all ranks' `operand`, of which few are in memory at a time."""
    count = case.count(ranks)
    length = count // case.facts.in_blocks(ranks)
    if case.reduces:
        fold = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[case.op]
        total = operand(case, ranks, 0).astype(np.float64)
        for other in range(1, ranks):
            total = fold(total, operand(case, ranks, other).astype(np.float64))
        if case.op == "mean":
            total = total / ranks
        total = total.astype(numpy_dtype(case.dtype))
    found = [
        total[source.block * length : (source.block + 1) * length]
        if isinstance(source, Folded)
        else _values(case, source.rank, source.block * length, length)
        for source in case.facts.results(Arguments(ranks, pairs=ring(ranks)), rank)
        if source is not None
    ]
    return np.concatenate(found)


def ring(ranks: int) -> tuple[tuple[int, int], ...]:
    """The (source, target) pairs of a permute: each rank sends to the next one."""
    return tuple((rank, (rank + 1) % ranks) for rank in range(ranks))


def sizes(begin: int, end: int, factor: int) -> list[int]:
    """``begin``, times ``factor`` until ``end``."""
    found = [begin]
    while found[-1] * factor <= end and factor > 1:
        found.append(found[-1] * factor)
    return found
