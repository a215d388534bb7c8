"""The groups of a collective: which partitions take part together, from the three forms in which XLA writes them.

XLA lists the partition ids of each group, or gives them as a reshaped and transposed iota, or names axes, or parts of
axes, of a mesh. In a program of one replica the ids are partition ids in all of them.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from jaxring._protobuf import Message
from jaxring.dropin.whole_program.unserved import UnservedError

if TYPE_CHECKING:
    from jaxring.dropin.whole_program.hlo import Instruction

_LEGACY_LISTS, _LISTS, _IOTA, _MESH = _FIELDS = 49, 87, 92, 93


def groups(instruction: Instruction, partitions: int) -> np.ndarray:
    """Partition ids in rank order, one row per group. Raises UnservedError where the engine cannot have such groups."""
    message = instruction.message
    # A program has few kinds of groups and many collectives.
    return _groups(tuple((n, v) for n in _FIELDS for v in message.all(n)), partitions)


@functools.lru_cache(maxsize=256)
def _groups(fields: tuple[tuple[int, bytes], ...], partitions: int) -> np.ndarray:
    message = Message.of(*fields)
    if message.has(_MESH):
        found = _by_axes(message.message(_MESH))
    elif message.has(_IOTA):
        found = _by_iota(message.message(_IOTA))
    else:
        found = _by_lists(message, partitions)
    if sorted(found.flat) != list(range(partitions)):
        raise UnservedError("its groups do not hold every partition once")
    found.flags.writeable = False
    return found


def _by_lists(message: Message, partitions: int) -> np.ndarray:
    listed = message.message(_LISTS).messages(1) if message.has(_LISTS) else message.messages(_LEGACY_LISTS)
    rows = [row for row in (group.numbers(1) for group in listed) if row]
    if not rows:
        return np.arange(partitions).reshape(1, partitions)
    if len({len(row) for row in rows}) > 1:
        raise UnservedError("its groups differ in size")
    return np.array(rows)


def _by_iota(message: Message) -> np.ndarray:
    """[groups, ranks] <= [reshaped] T(transposed)."""
    return _iota(message.numbers(3), message.numbers(4)).reshape(message.number(1), message.number(2))


def _by_axes(message: Message) -> np.ndarray:
    mesh = message.message(1)
    sizes = [axis.number(2, 1) for axis in mesh.messages(1)]
    devices = np.arange(math.prod(sizes))
    if mesh.has(3):
        transform = mesh.message(3)
        devices = _iota(transform.numbers(1), transform.numbers(2)).reshape(-1)
    listed = mesh.numbers(2)
    if listed:
        devices = np.array(listed)
    # Every axis is cut where a part that is named begins or ends; what is left over tells groups apart.
    named: list[tuple[int, int, int]] = []  # axis, the sizes outside of the part and of the part
    for reference in message.messages(2):
        axis = reference.number(1)
        part = reference.message(2)
        whole = not reference.has(2)
        named.append((axis, 1 if whole else part.number(1, 1), sizes[axis] if whole else part.number(2, 1)))
    dims: list[int] = []
    position: dict[tuple[int, int, int], int] = {}
    for axis, size in enumerate(sizes):
        outside = 1
        for each in sorted(each for each in named if each[0] == axis):
            _, before, length = each
            if before % outside or size % (before * length):
                raise UnservedError("its groups are parts of a mesh axis that overlap")
            dims.append(before // outside)
            position[each] = len(dims)
            dims.append(length)
            outside = before * length
        dims.append(size // outside)
    ranks = [position[each] for each in named]
    others = [i for i in range(len(dims)) if i not in ranks]
    table = devices.reshape(dims).transpose(others + ranks)
    return table.reshape(-1, math.prod(dims[i] for i in ranks))


def _iota(dims: list[int], order: list[int]) -> np.ndarray:
    return np.arange(math.prod(dims)).reshape(dims).transpose(order or range(len(dims)))
