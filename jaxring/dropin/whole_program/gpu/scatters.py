"""Reduce-scatters are made of all-reduces of which each rank uses its own part only.

XLA's partitioner writes a sum whose result is sharded as an all-reduce and a slice at an offset that depends on the
partition. XLA's ReduceScatterCreator, which comes later, makes a reduce-scatter of them. It recognises how offsets are
computed; here they are computed, for each partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.body import Body
from jaxring.dropin.whole_program.gpu.constants import Constants
from jaxring.dropin.whole_program.rewrite import groups_of
from jaxring.dropin.whole_program.shapes import Shape, is_tuple
from jaxring.dropin.whole_program.unserved import UnservedError

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Computation, Instruction, Module

# Fields that say how an all-reduce communicates, but for its groups: channel, reduction.
_SAME = (26, 38)
_GROUP_LISTS, _GLOBAL_IDS = 87, 71


def make_scatters(module: Module, computation: Computation) -> None:
    """Does so in a computation."""
    users: dict[int, int] = {}
    for each in computation.instructions:
        for operand in each.operands:
            users[operand] = users.get(operand, 0) + 1
    root = computation.message.number(6)
    reduces = {
        each.id: each
        for each in computation.instructions
        if each.opcode == "all-reduce"
        and users.get(each.id) == 1
        and each.id != root
        and len(each.operands) == 1
        and each.channel > 0
        and not is_tuple(each.shape)
    }
    constants = Constants(computation, module.partitions)
    found = {}
    for each in computation.instructions:
        if each.opcode == "dynamic-slice" and each.operands[0] in reduces:
            reduce = reduces[each.operands[0]]
            part = _part(module, constants, reduce, each)
            if part is not None:
                found[each.id] = (reduce, *part)
    if not found:
        return
    gone = {reduce.id for reduce, _, _ in found.values()}
    body = Body(module, computation)
    for each in computation.instructions:
        if each.id in found:
            reduce, dimension, groups = found[each.id]
            lists = [(1, Message.of((1, packed(int(n) for n in row)))) for row in groups]
            body.replace(
                each,
                "reduce-scatter",
                reduce.operands,
                (14, packed([dimension])),
                (_GLOBAL_IDS, 1),
                (_GROUP_LISTS, Message.of(*lists)),
                *reduce.message.select(_SAME),
                like=reduce,
            )
        elif each.id not in gone:
            body.keep(each)
    computation.take(body.instructions)


def _part(
    module: Module, constants: Constants, reduce: Instruction, used: Instruction
) -> tuple[int, np.ndarray] | None:
    """The dimension along which each rank uses its own part, and groups whose ranks are in the order of their parts."""
    whole, part = Shape.parse(reduce.shape), Shape.parse(used.shape)
    cut = [i for i, (n, m) in enumerate(zip(whole.dims, part.dims, strict=True)) if n != m]
    if len(cut) != 1:
        return None
    try:
        groups = groups_of(module, reduce)
    except UnservedError:
        return None
    (dimension,) = cut
    block = part.dims[dimension]
    if block * groups.shape[1] != whole.dims[dimension]:
        return None
    starts = constants.of(used.operands[1 + dimension])
    if starts is None:
        return None
    # Along the other dimensions there is one place for a slice of full size, whatever the program says.
    order = np.argsort(starts[groups], axis=1, kind="stable")
    groups = np.take_along_axis(groups, order, axis=1)
    expected = np.arange(groups.shape[1]) * block
    return (dimension, groups) if np.array_equal(starts[groups], np.broadcast_to(expected, groups.shape)) else None
