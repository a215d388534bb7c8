"""Random programs as data: what the generator makes, JAX and NumPy evaluate, and a report prints as Python.

A program is a `jax.shard_map` over a mesh of a block of statements. A statement makes values of earlier values; it may
hold blocks itself (the body of a loop, the branches of a conditional, a function that is differentiated). Values have
numbers, and every block has its own: what it needs of the outside comes as parameters.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


# A cotangent or tangent of a value is made of it by these.
SLOPE, OFFSET = 0.5, 0.25


def is_float(dtype: str) -> bool:
    """Whether it has derivatives."""
    return dtype.startswith(("float", "bfloat", "complex"))


@dataclasses.dataclass(frozen=True)
class Type:
    """What the generator knows of a value: ``shape`` on a rank, ``dtype``, the mesh axes over which it varies.

    ``bound``: no element is larger, None where that is not known. ``moved``: its bits are an input's, only moved.
    """

    shape: tuple[int, ...]
    dtype: str
    vary: tuple[str, ...]
    bound: float | None = 1.0
    moved: bool = False


@dataclasses.dataclass(frozen=True)
class Statement:
    """``outs = kind(*args, **params)`` with ``blocks`` as functions."""

    outs: tuple[int, ...]
    kind: str
    args: tuple[int, ...] = ()
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    blocks: tuple[Block, ...] = ()


@dataclasses.dataclass(frozen=True)
class Block:
    """A function of ``params`` that returns ``results``."""

    params: tuple[int, ...]
    statements: tuple[Statement, ...]
    results: tuple[int, ...]

    def kinds(self) -> Iterator[str]:
        """The kinds of all statements, those of inner blocks too."""
        for statement in self.statements:
            yield statement.params.get("name", statement.kind)
            for block in statement.blocks:
                yield from block.kinds()


@dataclasses.dataclass(frozen=True)
class Program:
    """``body`` on ``inputs`` over a mesh of ``axes`` (name, size), whose devices are in the order ``order``.

    ``manual`` are the axes of the region; the others are left to the partitioner. ``inputs`` and ``outputs`` are types;
    an input is sharded over the axes over which it varies. ``outer``: what is made of the mapped function: "" or "vjp",
    "jvp", "vmap", "remat". ``donated``: numbers of inputs.
    """

    seed: int
    axes: tuple[tuple[str, int], ...]
    order: tuple[int, ...]
    manual: tuple[str, ...]
    check_vma: bool
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    body: Block
    outer: str = ""
    donated: tuple[int, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Of the manual axes, in the mesh's order."""
        return {name: size for name, size in self.axes if name in self.manual}

    def describe(self) -> str:
        """One line for logs."""
        kinds = ",".join(sorted(set(self.body.kinds())))
        return f"seed {self.seed}, mesh {dict(self.axes)}, manual {self.manual}, check_vma {self.check_vma}: {kinds}"


def script(program: Program) -> str:
    """Python that checks the program again, to be run from the root of the repository."""
    return (
        "from tests.random.rnd_program import Block, Program, Statement, Type\n"
        f"from tests.random.rnd_check import replay\n\nreplay({_pretty(program)})\n"
    )


def _pretty(value: Any, indent: str = "") -> str:
    """`repr`, with a line for each statement."""
    inner = indent + "    "
    if isinstance(value, Program):
        fields = dataclasses.fields(value)
        lines = [f"{inner}{field.name}={_pretty(getattr(value, field.name), inner)},\n" for field in fields]
        return f"Program(\n{''.join(lines)}{indent})"
    if isinstance(value, Block):
        lines = [f"{inner}{_pretty(each, inner)},\n" for each in value.statements]
        body = f"(\n{''.join(lines)}{indent})" if lines else "()"
        return f"Block({value.params}, {body}, {value.results})"
    if isinstance(value, Statement):
        blocks = "".join(f"{inner}{_pretty(each, inner)},\n" for each in value.blocks)
        rest = f", (\n{blocks}{indent})" if blocks else ""
        return f"Statement({value.outs}, {value.kind!r}, {value.args}, {value.params}{rest})"
    return repr(value)
