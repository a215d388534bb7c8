"""The collectives that XLA inserts into a whole program, alone: with the program's shapes, in its order, no compute.

Each depends on the one before. The list is repeated as often as the case's ``chain`` says, so that what it takes to
start a program is a small part of its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from jaxring.bench.backends.jax_collective import program
from jaxring.bench.backends.jax_whole import WholeProgram, carried, far_off
from jaxring.bench.programs.inserted import inserted
from jaxring.bench.programs.operand import AXIS, ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jax.sharding import Mesh

    from jaxring.bench.programs import Program

# A share of the largest element of a result: float32 sums in another order differ by less.
_TOLERANCE = 1e-5


class CollectivesAlone:
    """The compiled collectives, and their operands: those of the program as XLA alone compiles it.

    ``install`` is called after that, and before they are compiled by themselves.
    """

    def __init__(self, case: Program, mesh: Mesh, install: Callable[[], object]) -> None:
        self._mesh = mesh
        self._listed = inserted(WholeProgram(case, mesh).compiled())
        install()
        self._run = self._chained(case.chain)
        # Zeros stay zeros, however often they are summed.
        self._operands = self._placed(np.zeros)

    def step(self) -> None:
        """Runs them once and waits for their end."""
        jax.block_until_ready(self._run(*self._operands))

    def wrong(self) -> int:
        """The elements of this process's results that are wrong where each runs once, on random numbers."""
        return far_off(self._chained(1)(*self._placed(_numbers)), self._expected(), _TOLERANCE)

    def choice(self) -> str:
        """How many they are with all repetitions, and who carries them."""
        return carried(self._run.lower(*self._operands).compile())

    def _chained(self, times: int) -> Any:
        """The program that runs the list so many times, and returns what it gives the last time."""

        def body(*parts: Any) -> tuple[Any, ...]:
            given = iter(x[0] for x in parts)
            operands = [[next(given) for _ in each.operands] for each in self._listed]
            results: list[list[Any]] = [[] for _ in self._listed]
            last = None
            for _ in range(times):
                for i, each in enumerate(self._listed):
                    if last is not None:
                        operands[i] = [_with_first_of(last, x) for x in operands[i]]
                    results[i] = each.run(operands[i], AXIS)
                    last = results[i][0]
                    # A new operand each time, or XLA would run it once.
                    if [x.shape for x in results[i]] == [x.shape for x in operands[i]]:
                        operands[i] = results[i]
            return tuple(x[None] for every in results for x in every)

        return program(self._mesh, body)

    def _placed(self, make: Callable[[tuple[int, ...]], np.ndarray]) -> list[jax.Array]:
        sharding = NamedSharding(self._mesh, ROWS)
        return [jax.device_put(values, sharding) for values in self._values(make)]

    def _values(self, make: Callable[[tuple[int, ...]], np.ndarray]) -> Iterator[np.ndarray]:
        """Of each operand the parts of all ranks."""
        for each in self._listed:
            for shape, dtype in each.operands:
                yield make((self._mesh.size, *shape)).astype(dtype)

    def _expected(self) -> Iterator[np.ndarray]:
        """Of each operand the results of all ranks."""
        given = self._values(_numbers)
        last: np.ndarray | None = None
        for each in self._listed:
            results = []
            for _ in each.operands:
                x = next(given)
                if last is not None:
                    x.reshape(len(x), -1)[:, 0] = last
                results.append(np.stack(each.expected(list(x))))
            last = results[0].reshape(len(results[0]), -1)[:, 0]
            yield from results


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape)


def _with_first_of(last: Any, x: Any) -> Any:
    """``x`` with its first element from ``last``, so that it cannot be read before that is there."""
    first = lax.slice(last, (0,) * last.ndim, (1,) * last.ndim).astype(x.dtype)
    return lax.dynamic_update_slice(x, first.reshape((1,) * x.ndim), (0,) * x.ndim)
