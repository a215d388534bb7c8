"""What integers that depend on nothing but the partition's number are: where a partition's part of an array begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxring.dropin.whole_program.shapes import Shape, is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.dropin.whole_program.hlo import Computation, Instruction

# Fields of a LiteralProto that hold integers, by dtype.
_LITERALS = {"int32": 4, "int64": 5, "uint32": 6, "uint64": 7}
_LITERAL = 8
_MOST_ELEMENTS = 4096

_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda a, b: a // np.where(b == 0, 1, b),  # of numbers that are not negative
    "remainder": lambda a, b: a % np.where(b == 0, 1, b),
    "minimum": np.minimum,
    "maximum": np.maximum,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "convert": lambda x: x,
    "copy": lambda x: x,
}
_RESHAPES = frozenset({"reshape", "bitcast"})


class Constants:
    """The values of a computation's instructions on each partition, where they are known when it is compiled."""

    def __init__(self, computation: Computation, partitions: int) -> None:
        self._by_id = {each.id: each for each in computation.instructions}
        self._partitions = partitions
        self._known: dict[int, np.ndarray | None] = {}

    def of(self, identifier: int) -> np.ndarray | None:
        """int64 [partitions, *shape], or None for what depends on anything else."""
        if identifier not in self._known:
            self._known[identifier] = None  # a depth that Python cannot take ends here
            self._known[identifier] = self._evaluated(self._by_id[identifier])
        return self._known[identifier]

    def _evaluated(self, instruction: Instruction) -> np.ndarray | None:
        opcode = instruction.opcode
        if opcode == "partition-id":
            return np.arange(self._partitions)
        if is_tuple(instruction.shape):
            return None
        shape = Shape.parse(instruction.shape)
        if shape.dtype not in _LITERALS or np.prod(shape.dims, dtype=np.int64) > _MOST_ELEMENTS:
            return None
        dims = (self._partitions, *shape.dims)
        if opcode == "constant":
            values = instruction.message.message(_LITERAL).numbers(_LITERALS[shape.dtype])
            if len(values) != np.prod(shape.dims, dtype=np.int64):
                return None
            return np.broadcast_to(np.array(values, np.int64).reshape(shape.dims), dims)
        if opcode not in _ELEMENTWISE and opcode not in _RESHAPES and opcode != "dynamic-slice":
            return None
        given = [self.of(operand) for operand in instruction.operands]
        known = [each for each in given if each is not None]
        if len(known) < len(given):
            return None
        if opcode in _RESHAPES:
            return known[0].reshape(dims)
        if opcode == "dynamic-slice":
            return _sliced(known, shape.dims)
        return _ELEMENTWISE[opcode](*known)


def _sliced(given: list[np.ndarray], dims: tuple[int, ...]) -> np.ndarray:
    whole, *starts = given
    rows = []
    for partition, array in enumerate(whole):
        at = []
        for start, size, limit in zip(starts, dims, array.shape, strict=True):
            begin = int(np.clip(start[partition], 0, limit - size))
            at.append(slice(begin, begin + size))
        rows.append(array[tuple(at)])
    return np.stack(rows)
