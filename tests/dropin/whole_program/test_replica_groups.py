"""The three forms of replica groups, against their definition; and messages that are edited."""

from __future__ import annotations

import numpy as np
import pytest

from jaxring._protobuf import Message, packed
from jaxring.dropin.whole_program.hlo import Instruction
from jaxring.dropin.whole_program.replica_groups import groups
from jaxring.dropin.whole_program.shapes import Shape
from jaxring.dropin.whole_program.unserved import UnservedError


def by_axes(sizes, references, devices=None, iota=None):
    """A mesh, and its axes by index or as (index, pre-size, size)."""
    mesh = Message.of(*((1, Message.of((1, f"a{i}"), (2, size))) for i, size in enumerate(sizes)))
    if devices is not None:
        mesh.add(2, packed(devices))
    if iota is not None:
        mesh.add(3, Message.of((1, packed(iota[0])), (2, packed(iota[1]))))
    field = Message.of((1, mesh))
    for reference in references:
        if isinstance(reference, int):
            field.add(2, Message.of((1, reference)) if reference else b"")
        else:
            axis, before, size = reference
            field.add(2, Message.of((1, axis), (2, Message.of((1, before), (2, size)))))
    return Instruction(Message.of((93, field)))


def lists(rows, number=87):
    listed = [Message.of((1, packed(row))) for row in rows]
    if number == 49:
        return Instruction(Message.of(*((49, each) for each in listed)))
    return Instruction(Message.of((87, Message.of(*((1, each) for each in listed)))))


IDS = np.arange(8).reshape(4, 2)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (lists([[3, 1], [0, 2], [4, 5], [7, 6]]), [[3, 1], [0, 2], [4, 5], [7, 6]]),
        (lists([[3, 1, 0, 2], [4, 5, 7, 6]], number=49), [[3, 1, 0, 2], [4, 5, 7, 6]]),
        (lists([]), [list(range(8))]),
        (Instruction(Message()), [list(range(8))]),
        (Instruction(Message.of((92, Message.of((1, 4), (2, 2), (3, packed([8])))))), IDS),
        (Instruction(Message.of((92, Message.of((1, 2), (2, 4), (3, packed([4, 2])), (4, packed([1, 0])))))), IDS.T),
        (by_axes([4, 2], [0]), IDS.T),
        (by_axes([4, 2], [1]), IDS),
        (by_axes([4, 2], [1, 0]), [[0, 2, 4, 6, 1, 3, 5, 7]]),
        # The outer and the inner half of the first axis.
        (by_axes([4, 2], [(0, 1, 2)]), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (by_axes([4, 2], [(0, 2, 2)]), [[0, 2], [1, 3], [4, 6], [5, 7]]),
        # Both, the inner one first; and the middle third of an axis of eight.
        (by_axes([4, 2], [(0, 2, 2), (0, 1, 2)]), [[0, 4, 2, 6], [1, 5, 3, 7]]),
        (by_axes([8], [(0, 2, 2)]), [[0, 2], [1, 3], [4, 6], [5, 7]]),
        # Which device ids a mesh's places have: as a list, and as an iota.
        (by_axes([2, 4], [(1, 1, 2)], iota=([2, 2, 2], [0, 2, 1])), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (by_axes([2, 2, 2], [2], devices=[3, 1, 0, 2, 7, 5, 4, 6]), [[3, 1], [0, 2], [7, 5], [4, 6]]),
    ],
)
def test_groups(instruction, expected):
    np.testing.assert_array_equal(groups(instruction, 8), expected)


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (lists([[0, 1], [2, 3, 4], [5, 6, 7]]), "differ in size"),
        (lists([[0, 1], [2, 3]]), "do not hold every partition"),
        (by_axes([8], [(0, 1, 4), (0, 2, 2)]), "overlap"),
    ],
)
def test_groups_that_the_engine_cannot_have(instruction, why):
    with pytest.raises(UnservedError, match=why):
        groups(instruction, 8)


def test_unknown_fields_stay_as_they_are():
    """Of all wire types, in their order."""
    data = b"\x08\x96\x01" + b"\x9a\x7f\x03abc" + b"\x11" + bytes(range(8)) + b"\x08\x01" + b"\x1d" + bytes(4)
    message = Message(data)
    assert bytes(message) == data
    message.add(5, -1)
    assert bytes(message) == data + b"\x28" + b"\xff" * 9 + b"\x01"
    assert Message(bytes(message)).number(5) == -1
    assert message.numbers(1) == [150, 1]


def test_what_is_not_changed_is_written_as_it_was_read():
    """Even where XLA would have written it otherwise: this length has more bytes than it needs."""
    data = b"\x0a\x83\x00abc\x10\x05"
    message = Message(data)
    assert (message.data(1), message.number(2)) == (b"abc", 5)
    assert bytes(message) == data
    message.put(2, 6)
    assert bytes(message) == b"\x0a\x83\x00abc\x10\x06"
    message.put(3, b"")
    assert bytes(message) == b"\x0a\x83\x00abc\x10\x06\x1a\x00"


def test_blocks_are_whole_where_nothing_lies_outside_of_them():
    rows = Shape("float32", (4, 6), (0, 1))
    assert rows.in_whole_blocks(0)
    assert not rows.in_whole_blocks(1)
    assert Shape("float32", (4, 6), (1, 0)).in_whole_blocks(1)
    assert Shape("float32", (1, 6), (0, 1)).in_whole_blocks(1)
