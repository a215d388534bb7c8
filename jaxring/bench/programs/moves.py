"""Programs that do little but move or sum: one collective each, and two chains of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from jaxring.bench.programs.operand import COLUMNS, ROWS, WHOLE, Operand, Workload, side, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    Constrain = Callable[..., Any]


def sum_(nbytes: int, ranks: int) -> Workload:
    """An all-reduce."""
    return Workload(lambda _, x: (x.sum(0),), (Operand((ranks, whole(nbytes, 4)), ROWS),), (WHOLE,))


def gather(nbytes: int, ranks: int) -> Workload:
    """An all-gather."""
    return Workload(lambda _, x: (x,), (Operand((ranks * whole(nbytes / ranks, 4),), ROWS),), (WHOLE,))


def transpose(nbytes: int, ranks: int) -> Workload:
    """An all-to-all."""
    return Workload(lambda _, x: (x,), (_square(nbytes, ranks),), (COLUMNS,))


def roll(nbytes: int, ranks: int) -> Workload:
    """A permutation of the devices."""
    count = whole(nbytes, 4)
    return Workload(lambda _, x: (jnp.roll(x, count),), (Operand((ranks * count,), ROWS),), (ROWS,))


def reshard(nbytes: int, ranks: int) -> Workload:
    """All of the moves, one after another. What lies between them keeps XLA from joining them."""
    square = _square(nbytes, ranks)

    def function(constrain: Constrain, x: Any) -> tuple[Any, ...]:
        x = constrain(x * 2, COLUMNS)
        x = constrain(jnp.roll(x, square.shape[1] // ranks, 1), COLUMNS)
        x = constrain(x + 1, ROWS)
        return (x * 3,)

    return Workload(function, (square,), (WHOLE,))


def fft(nbytes: int, ranks: int) -> Workload:
    """Each dimension is transformed while it is whole."""
    n = side(nbytes * ranks, 8, ranks)

    def function(constrain: Constrain, x: Any) -> tuple[Any, ...]:
        x = constrain(jnp.fft.fft(x, axis=1), COLUMNS)
        return (constrain(jnp.fft.fft(x, axis=0), ROWS),)

    return Workload(function, (Operand((n, n), ROWS, dtype="complex64"),), (ROWS,))


def _square(nbytes: int, ranks: int) -> Operand:
    n = side(nbytes * ranks, 4, ranks)
    return Operand((n, n), ROWS)
