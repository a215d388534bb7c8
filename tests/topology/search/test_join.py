"""Chains of several machines joined to rings."""

from __future__ import annotations

import pytest

from jaxring.topology.search.join import join
from jaxring.topology.search.rings import search
from jaxring.topology.wiring import wire
from tests.topology.machines import nvswitch_machine, pcie_machine


def test_machines_that_are_alike_keep_to_their_rails():
    found = search(wire(nvswitch_machine(4, nics=2)), machines=3)
    joined = join([found] * 3)
    assert joined.total == pytest.approx(found.total)
    for ring in joined.rings:
        assert sorted(ring) == list(range(12))
        assert [rank // 4 for rank in ring] == [0] * 4 + [1] * 4 + [2] * 4
        inside = {tuple(rank % 4 for rank in ring[4 * m : 4 * m + 4]) for m in range(3)}
        assert len(inside) == 1


def test_the_slowest_machine_sets_the_speed():
    fast = search(wire(nvswitch_machine(4, nics=4)), machines=2)
    slow = search(wire(pcie_machine(2, nics=1)), machines=2)
    joined = join([fast, slow])
    assert slow.total < fast.total
    assert joined.total == pytest.approx(slow.total)
    assert all(sorted(ring) == list(range(6)) for ring in joined.rings)


def test_a_part_of_each_machine_is_numbered_without_gaps():
    found = search(wire(nvswitch_machine(8, nics=2)), gpus=(0, 4), machines=2)
    assert all(sorted(ring) == [0, 1, 2, 3] for ring in join([found, found]).rings)


def test_what_cannot_be_joined_is_an_error():
    alone = search(wire(nvswitch_machine(4)))
    with pytest.raises(ValueError, match="these rings do not leave their machine"):
        join([alone, alone])
    with pytest.raises(ValueError, match="need no joining; there are 1"):
        join([alone])
