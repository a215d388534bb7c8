"""What a program is made of: a function of arrays, and how its operands and results are sharded."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.sharding import PartitionSpec as P

if TYPE_CHECKING:
    from collections.abc import Callable

# The mesh axis over which programs are sharded.
AXIS = "devices"
ROWS = P(AXIS)  # type: ignore[no-untyped-call]
COLUMNS = P(None, AXIS)  # type: ignore[no-untyped-call]
HEADS = P(None, None, AXIS)  # type: ignore[no-untyped-call]
WHOLE = P()  # type: ignore[no-untyped-call]


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of normally distributed numbers: ``scale`` is their standard deviation."""

    shape: tuple[int, ...]
    spec: P
    scale: float = 1.0
    dtype: str = "float32"

    def values(self, seed: int) -> np.ndarray:
        """The whole array, the same in every process."""
        made = np.random.default_rng(seed).normal(scale=self.scale, size=self.shape)
        return made.astype(self.dtype)


@dataclasses.dataclass(frozen=True)
class Workload:
    """``function(*operands)`` gives a tuple of arrays, sharded by ``results``.

    ``constrain(x, spec)``, the function's first argument, shards an intermediate value.
    """

    function: Callable[..., tuple[Any, ...]]
    operands: tuple[Operand, ...]
    results: tuple[P, ...]


def whole(nbytes: float, each: int) -> int:
    """How many units of ``each`` bytes make ``nbytes``: at least one."""
    return max(1, round(nbytes / each))


def side(nbytes: float, each: int, step: int = 1) -> int:
    """The side of a square of elements of ``each`` bytes, as a multiple of ``step``."""
    return step * max(1, round(math.sqrt(nbytes / each) / step))
