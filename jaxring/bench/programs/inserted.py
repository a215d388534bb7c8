"""The collectives that XLA has inserted into a compiled program: what it takes to run them without the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import lax

from jaxring.dropin.whole_program.hlo import Instruction, Module
from jaxring.dropin.whole_program.rewrite import OPCODES, groups_of
from jaxring.dropin.whole_program.shapes import shapes
from jaxring.errors import JaxringError
from jaxring.plan.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import jax


class Inserted(NamedTuple):
    """A collective over all devices. ``operands``: shape and dtype of each operand of a device.

    ``dimension``: along which it gathers, scatters or exchanges. ``pairs``: sources and targets of a permutation.
    """

    opcode: str
    operands: tuple[tuple[tuple[int, ...], np.dtype], ...]
    dimension: int = 0
    pairs: tuple[tuple[int, int], ...] = ()

    def run(self, operands: Sequence[jax.Array], axis: str) -> list[jax.Array]:
        """The results of `jax.lax`'s collective over a mesh axis."""
        if self.opcode == "all-reduce":
            return list(lax.psum(tuple(operands), axis))
        calls: dict[str, Callable[[Any], Any]] = {
            "all-gather": lambda x: lax.all_gather(x, axis, axis=self.dimension, tiled=True),
            "reduce-scatter": lambda x: lax.psum_scatter(x, axis, scatter_dimension=self.dimension, tiled=True),
            "all-to-all": lambda x: lax.all_to_all(x, axis, self.dimension, self.dimension, tiled=True),
            "collective-permute": lambda x: lax.ppermute(x, axis, self.pairs),
        }
        return [calls[self.opcode](x) for x in operands]

    def expected(self, every: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each rank's result for one operand of each rank."""
        n = len(every)
        if self.opcode == "all-reduce":
            return [np.sum(every, axis=0)] * n
        if self.opcode == "all-gather":
            return [np.concatenate(every, self.dimension)] * n
        if self.opcode == "reduce-scatter":
            return np.split(np.sum(every, axis=0), n, self.dimension)
        if self.opcode == "all-to-all":
            blocks = [np.split(x, n, self.dimension) for x in every]
            return [np.concatenate([blocks[source][rank] for source in range(n)], self.dimension) for rank in range(n)]
        source = {target: source for source, target in self.pairs}
        return [every[source[rank]] if rank in source else np.zeros_like(every[rank]) for rank in range(n)]


def inserted(compiled: jax.stages.Compiled) -> list[Inserted]:
    """Those of a program that was compiled without jaxring, in its order.

    Raises:
        JaxringError: For one that is not over all devices in their order, or that this file does not know.
    """
    found = []
    executable: Any = compiled.runtime_executable()
    for each in executable.hlo_modules():
        module = Module(each.as_serialized_hlo_module_proto())
        for computation in module.computations:
            defined = computation.by_id
            for instruction in computation.instructions:
                if instruction.opcode in OPCODES:
                    every = [shapes(defined[operand].shape)[0] for operand in instruction.operands]
                    operands = [(shape.dims, np.dtype(numpy_dtype(shape.dtype))) for shape in every]
                    found.append(_known(module, instruction, operands))
    return found


def _known(module: Module, instruction: Instruction, operands: list[tuple[tuple[int, ...], np.dtype]]) -> Inserted:
    opcode, n = instruction.opcode, module.partitions
    refused = f"{opcode} {instruction.name} cannot be run alone"
    if opcode == "collective-permute":
        return Inserted(opcode, tuple(operands), pairs=instruction.pairs)
    if groups_of(module, instruction).tolist() != [list(range(n))]:
        raise JaxringError(f"{refused}: it is not over all devices in their order.")
    if opcode in ("all-reduce", "reduce-scatter"):
        reduction, _ = module.reduction(instruction.called[0])
        if reduction != "add":
            raise JaxringError(f"{refused}: its reduction is {reduction}.")
    if opcode == "all-to-all" and len(operands) == n > 1:
        # XLA gives it an operand for each rank; `jax.lax` cuts one.
        (shape, dtype), *_ = operands
        return Inserted(opcode, (((n, *shape), dtype),))
    if opcode not in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        raise JaxringError(f"{refused}: benchmarks know all-reduce, reduce-scatter, all-gather, all-to-all, permutes.")
    return Inserted(opcode, tuple(operands), next(iter(instruction.dimensions), 0))
