"""Tables of steps as lanes: equal steps are one object, and each keeps its number."""

from __future__ import annotations

import pytest

from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Flag, Spec
from jaxring.simulate.program import compile_lanes
from jaxring.simulate.tile_sizes import cut


@pytest.mark.parametrize(("collective", "algorithm", "most"), [("all_reduce", "ring", 4), ("all_gather", "pat", 7)])
def test_equal_steps_are_one_object(collective, algorithm, most):
    """A ring has a few kinds of steps, PAT one for each number of exchanges, whatever the number of ranks."""
    schedule = build(Spec(collective, 64, algorithm))
    program = compile_lanes(schedule, cut(schedule, 1 << 20, "float32", 1 << 20))
    for lane in program.lanes:
        assert len(lane.ops) >= 64
        assert len({id(op) for op in lane.ops}) <= most
        assert list(lane.numbers) == list(range(len(lane.ops)))


def test_numbers_are_those_of_the_table():
    """Steps that fill with zeros take no time, and are left out."""
    schedule = build(Spec("reduce", 3, "direct", root=1))
    program = compile_lanes(schedule, cut(schedule, 4096, "float32", 4096))
    left_out = 0
    for lane in program.lanes:
        steps = schedule.lanes(lane.rank)[lane.number]
        kept = [number for number, step in enumerate(steps) if not step.flags & Flag.ZERO]
        left_out += len(steps) - len(kept)
        assert list(lane.numbers) == kept
    assert left_out > 0
