"""Collectives of one kind, among the same groups, that do not need each other become one with several operands.

That is what XLA's combiners do later, up to the same limits (xla/service/collective_utils.h; the flags that change them
are not in the module). The one collective becomes a fused call: each operand stays an operation of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jaxring._protobuf import Message
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.gpu.dependencies import Dependencies, as_ready, in_order, needs
from jaxring.dropin.whole_program.rewrite import groups_of
from jaxring.dropin.whole_program.shapes import is_tuple, shapes
from jaxring.dropin.whole_program.unserved import UnservedError
from jaxring.plan import dtypes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module

# How many bytes the results have together, at most.
_MOST_BYTES = 30 * 1024 * 1024 + 7
_MOST_OPERANDS = 256
_JOINED = frozenset({"all-reduce", "all-gather", "reduce-scatter"})
# Fields that say how a collective communicates.
_SAME = (14, 26, 38, 49, 71, 87, 92, 93)
_METADATA, _CONTROL, _FRONTEND = 7, 37, 68


def join(module: Module, computation: Computation) -> None:
    """Does so in a computation."""
    joined = _joined(module, computation)
    if not joined:
        return
    body = Body(module, computation)
    team = {each.id: members for members in joined for each in members}

    def needed(instruction: Instruction) -> list[int]:
        return [need for each in team.get(instruction.id, [instruction]) for need in needs(each)]

    emitted: set[int] = set()
    for each in in_order(computation.instructions, needed):
        if each.id not in team:
            body.keep(each)
        elif each.id not in emitted:
            _emit(body, team[each.id])
            emitted.update(member.id for member in team[each.id])
    computation.take(body.instructions)


def _emit(body: Body, members: list[Instruction]) -> None:
    first = members[0]
    module = body.module
    result = Message.of((2, 13), *((4, shapes(each.shape)[0].row_major().serialized()) for each in members))
    same = first.message.select(_SAME)
    same += [(number, data) for number in (_METADATA, _FRONTEND) for data in first.message.all(number)]
    operands = [operand for each in members for operand in each.operands]
    one = body.make(first.opcode, bytes(result), operands, *same)
    module.joined[one] = [each.metadata for each in members]
    for index, each in enumerate(members):
        each.message.fields = [f for f in each.message.fields if f[0] != _CONTROL]
        body.replace(each, "get-tuple-element", [one], (13, index))


def _joined(module: Module, computation: Computation) -> list[list[Instruction]]:
    """The instructions that become one, in order; at least two of each."""
    kinds: dict[int, Hashable] = {}
    for each in computation.instructions:
        kind = _kind(module, each)
        if kind is not None:
            kinds[each.id] = kind
    if len(set(kinds.values())) == len(kinds):
        return []
    dependencies = Dependencies(computation, kinds)
    # The last ones of each kind, which more may join, and their bytes.
    last: dict[Hashable, tuple[list[Instruction], int]] = {}
    found: list[list[Instruction]] = []
    by_id = {each.id: each for each in computation.instructions}
    for identifier in as_ready(computation, kinds):
        each = by_id[identifier]
        kind, nbytes = kinds[each.id], _bytes(each)
        members, so_far = last.get(kind, ([], 0))
        if (
            members
            and so_far + nbytes <= _MOST_BYTES
            and len(members) < _MOST_OPERANDS
            and dependencies.merge(members[0].id, each.id)
        ):
            members.append(each)
            last[kind] = members, so_far + nbytes
        else:
            last[kind] = [each], nbytes
            found.append(last[kind][0])
    return [members for members in found if len(members) > 1]


def _kind(module: Module, instruction: Instruction) -> Hashable | None:
    """What only equal ones of are joined; None for what is not joined."""
    if instruction.opcode not in _JOINED or instruction.channel <= 0:
        return None
    if is_tuple(instruction.shape) or len(instruction.operands) != 1:
        return None
    (shape,) = shapes(instruction.shape)
    if shape.dtype not in dtypes.DTYPES:
        return None
    try:
        groups = groups_of(module, instruction)
    except UnservedError:
        return None
    reduction = ""
    if instruction.called:
        opcode, operands = module.reduction(instruction.called[0])
        reduction = f"{opcode} of {operands} {shape.dtype}"
    return instruction.opcode, tuple(instruction.dimensions), reduction, groups.tobytes(), groups.shape


def _bytes(instruction: Instruction) -> int:
    (shape,) = shapes(instruction.shape)
    return math.prod(shape.dims) * dtypes.element_bytes(shape.dtype)
