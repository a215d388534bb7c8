"""The block of a random program that is being made: the values in scope, their types, and how to add statements."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

from tests.random.rnd_program import Statement, Type

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ELEMENTS = 48
_DTYPES = {
    "float32": 30, "float64": 8, "bfloat16": 9, "float16": 6, "complex64": 6, "complex128": 3, "float8_e4m3fn": 2,
    "float8_e5m2": 2, "int32": 10, "int64": 3, "int16": 1, "int8": 3, "uint8": 3, "uint16": 1, "uint32": 3, "uint64": 2,
    "bool": 6,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Context:
    """Where a block stands: ``vmaps`` with names, the derivatives that are taken around it, how deep it is."""

    vmaps: tuple[tuple[str, int], ...] = ()
    derivatives: tuple[str, ...] = ()
    deep: int = 0
    batched: bool = False


class Scope:
    """The block that is being made: values have numbers, and ``types`` has what is known of each."""

    axes: tuple[tuple[str, int], ...]
    manual: tuple[str, ...]
    sizes: dict[str, int]
    check_vma: bool

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"program {seed}")
        self.types: dict[int, Type] = {}
        self.statements: list[Statement] = []
        self.scope: list[int] = []
        self.context = Context()

    def dtype(self) -> str:
        """Of an input or a conversion. XLA ends the process at a 16-bit all-reduce of a partially manual region."""
        weights = dict(_DTYPES)
        if len(self.manual) < len(self.axes):
            del weights["bfloat16"], weights["float16"]
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def everywhere(self, t: Type) -> Type:
        """The type, varying over all manual axes."""
        return dataclasses.replace(t, vary=tuple(self.sizes))

    def vary(self, names: Any) -> tuple[str, ...]:
        """In the mesh's order; without types, everything does."""
        return tuple(name for name in self.sizes if name in names or not self.check_vma)

    def new(self, t: Type) -> int:
        """A value of this type."""
        self.types[len(self.types)] = t
        return len(self.types) - 1

    def add(
        self, kind: str, args: Sequence[int], params: dict[str, Any], types: Sequence[Type], blocks: Any = ()
    ) -> tuple[int, ...]:
        """A statement at the end of the block that is being made."""
        outs = tuple(self.new(t) for t in types)
        self.statements.append(Statement(outs, kind, tuple(args), params, tuple(blocks)))
        self.scope += outs
        return outs

    def pick(self, suits: Any = lambda t: True) -> int | None:
        """A value of the scope, rather a late one."""
        found = [v for v in self.scope if suits(self.types[v])]
        return self.rng.choice(found[-4:] if self.rng.random() < 0.7 else found) if found else None
