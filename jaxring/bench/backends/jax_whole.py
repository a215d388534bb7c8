"""A whole program, of which XLA shards the work and inserts the collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxring.bench.programs import moves, training
from jaxring.dropin.explaining import Engine, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    from jaxring.bench.programs import Program
    from jaxring.bench.programs.operand import Workload

_MADE: dict[str, Callable[[int, int], Workload]] = {
    "sum": moves.sum_,
    "gather": moves.gather,
    "transpose": moves.transpose,
    "roll": moves.roll,
    "reshard": moves.reshard,
    "fft": moves.fft,
    "data_parallel": training.data_parallel,
    "fsdp": training.fsdp,
    "tensor_parallel": training.tensor_parallel,
}
# A share of the largest element of a result: float32 sums in another order differ by less.
_TOLERANCE = 1e-4


class WholeProgram:
    """The compiled program, and its operands."""

    def __init__(self, case: Program, mesh: Mesh) -> None:
        self._work = _MADE[case.program](case.nbytes, mesh.size)
        self._mesh = mesh
        self._values = [operand.values(seed) for seed, operand in enumerate(self._work.operands)]
        self._operands = [
            jax.make_array_from_callback(values.shape, self._sharding(operand.spec), values.__getitem__)
            for values, operand in zip(self._values, self._work.operands, strict=True)
        ]
        shardings = tuple(self._sharding(spec) for spec in self._work.results)
        self._run = jax.jit(lambda *operands: self._work.function(self._constrain, *operands), out_shardings=shardings)

    def step(self) -> None:
        """Runs the program once and waits for its end."""
        jax.block_until_ready(self._run(*self._operands))

    def wrong(self) -> int:
        """The elements of this process's results that differ from those of one device that has it all."""
        alone = jax.jit(lambda *operands: self._work.function(lambda x, _: x, *operands))
        with jax.default_device(jax.local_devices()[0]):
            expected = [np.asarray(result) for result in alone(*self._values)]
        return far_off(self._run(*self._operands), expected, _TOLERANCE)

    def choice(self) -> str:
        """How many collectives the program has, and who carries them."""
        return carried(self.compiled())

    def compiled(self) -> jax.stages.Compiled:
        """The program, compiled anew."""
        made: jax.stages.Compiled = self._run.lower(*self._operands).compile()
        return made

    def _sharding(self, spec: P) -> NamedSharding:
        return NamedSharding(self._mesh, spec)

    def _constrain(self, x: Any, spec: P) -> Any:
        return jax.lax.with_sharding_constraint(x, self._sharding(spec))


def carried(compiled: jax.stages.Compiled) -> str:
    """How many collectives a program has, and who carries them."""
    every = [each.engine for each in listed(compiled)]
    found = [f"{every.count(engine)} {engine.value}" for engine in Engine if engine in every]
    return ", ".join(found) or "no collective"


def far_off(results: Iterable[jax.Array], expected: Iterable[np.ndarray], tolerance: float) -> int:
    """The elements of this process's shards that differ by more than a share of the largest right one."""
    wrong = 0
    for result, right in zip(results, expected, strict=True):
        for shard in result.addressable_shards:
            far = np.abs(np.asarray(shard.data) - right[shard.index]) > tolerance * np.max(np.abs(right))
            wrong += int(np.sum(far))
    return wrong
