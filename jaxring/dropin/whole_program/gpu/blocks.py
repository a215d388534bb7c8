"""Blocks become the leading dimension of what a collective takes and gives.

The engine moves contiguous blocks. On GPUs no layout is decided yet when the module is transformed, so a collective
along another dimension is one along the first, between transpositions. XLA decides layouts and fuses later, by which
most of these cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.rewrite import groups_of
from jaxring.dropin.whole_program.shapes import Shape, is_tuple, shapes
from jaxring.dropin.whole_program.unserved import UnservedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module

_ALONG = frozenset({"all-gather", "reduce-scatter", "all-to-all"})
# Fields that say how a collective communicates and whose it is, but for its dimensions.
_SAME = (7, 26, 38, 49, 68, 71, 87, 92, 93)


def lead_with_blocks(module: Module, computation: Computation) -> None:
    """Does so in a computation."""
    concerned = {each.id for each in computation.instructions if each.opcode in _ALONG and _concerned(each)}
    if not concerned:
        return
    body = Body(module, computation)
    for each in computation.instructions:
        if each.id not in concerned or not _changed(body, each):
            body.keep(each)
    computation.take(body.instructions)


def _concerned(instruction: Instruction) -> bool:
    if is_tuple(instruction.shape):
        return instruction.opcode == "all-to-all"
    return len(instruction.operands) == 1 and instruction.dimensions[0] != 0


def _changed(body: Body, instruction: Instruction) -> bool:
    """Appends what replaces the instruction. False, and nothing is appended, where it is to stay."""
    try:
        ranks = groups_of(body.module, instruction).shape[1]
    except UnservedError:
        return False
    if is_tuple(instruction.shape):
        return _from_buffers(body, instruction, ranks)
    (operand,) = instruction.operands
    (given,) = shapes(body.shape(operand))
    dimension = instruction.dimensions[0]
    if instruction.opcode == "all-gather":
        one = _reshape(body, operand, given, (1, *given.dims))
        all_of = given._replace(dims=(ranks, *given.dims)).row_major()
        moved = _collective(body, instruction, one, all_of)
        _merge(body, instruction, moved, all_of, dimension)
        return True
    if given.dims[dimension] % ranks:
        return False
    cut, blocks = _cut(body, operand, given, dimension, ranks)
    if instruction.opcode == "all-to-all":
        moved = _collective(body, instruction, cut, blocks)
        _merge(body, instruction, moved, blocks, dimension)
        return True
    own = blocks._replace(dims=(1, *blocks.dims[1:]))
    body.replace(instruction, "reshape", [_collective(body, instruction, cut, own)])
    return True


def _from_buffers(body: Body, instruction: Instruction, ranks: int) -> bool:
    """An all-to-all with an operand for each rank and a result from each."""
    given = [shapes(body.shape(operand))[0] for operand in instruction.operands]
    block = given[0]
    if len(given) != ranks or any(each != block for each in given):
        return False
    whole = block._replace(dims=(ranks, *block.dims)).row_major()
    parts = [_reshape(body, operand, block, (1, *block.dims)) for operand in instruction.operands]
    joined = body.make("concatenate", whole.serialized(), parts, (14, packed([0])))
    moved = _collective(body, instruction, joined, whole)
    results = []
    for rank in range(ranks):
        limits = [(rank, rank + 1), *((0, n) for n in block.dims)]
        slices = [(17, Message.of((1, begin), (2, end), (3, 1))) for begin, end in limits]
        one = whole._replace(dims=(1, *block.dims))
        results.append(_reshape(body, body.make("slice", one.serialized(), [moved], *slices), one, block.dims))
    body.replace(instruction, "tuple", results)
    return True


def _collective(body: Body, instruction: Instruction, operand: int, result: Shape) -> int:
    """The same collective along the first dimension."""
    same = instruction.message.select(_SAME)
    return body.make(instruction.opcode, result.serialized(), [operand], *same, (14, packed([0])))


def _reshape(body: Body, operand: int, given: Shape, dims: tuple[int, ...]) -> int:
    return body.make("reshape", given._replace(dims=dims).row_major().serialized(), [operand])


def _transpose(body: Body, operand: int, given: Shape, order: Sequence[int]) -> tuple[int, Shape]:
    made = given._replace(dims=tuple(given.dims[i] for i in order)).row_major()
    return body.make("transpose", made.serialized(), [operand], (14, packed(order))), made


def _cut(body: Body, operand: int, given: Shape, dimension: int, ranks: int) -> tuple[int, Shape]:
    """[ranks, *block] of an array that is cut along a dimension."""
    dims = (*given.dims[:dimension], ranks, given.dims[dimension] // ranks, *given.dims[dimension + 1 :])
    split = given._replace(dims=dims).row_major()
    others = [i for i in range(len(dims)) if i != dimension]
    return _transpose(body, _reshape(body, operand, given, dims), split, [dimension, *others])


def _merge(body: Body, instruction: Instruction, moved: int, blocks: Shape, dimension: int) -> None:
    """Takes the place of the instruction: the blocks of ``moved``, one behind the other along a dimension."""
    order = [*range(1, dimension + 1), 0, *range(dimension + 1, len(blocks.dims))]
    merged, _ = _transpose(body, moved, blocks, order)
    body.replace(instruction, "reshape", [merged])
