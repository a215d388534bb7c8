"""Results of an epilogue that casts cross memory by their own width, and the data by its own."""

from __future__ import annotations

import collections

import pytest

from jaxring.plan.algorithms import build
from jaxring.plan.epilogue import with_epilogue
from jaxring.plan.schedule import Spec
from jaxring.simulate import program
from jaxring.simulate.links.routes import multicast
from jaxring.simulate.tile_sizes import cut

RANKS, ELEMENTS = 4, 1024


def crossing(result):
    """Bytes that are read from each rank's memory by others in an all_reduce of float32, and written to it."""
    schedule = with_epilogue(build(Spec("all_reduce", RANKS, "direct", placement=(0,) * RANKS)))
    found = program.compile_lanes(schedule, cut(schedule, 4 * ELEMENTS, "float32", 1 << 20, result=result))
    reads: collections.Counter[int] = collections.Counter()
    writes: collections.Counter[int] = collections.Counter()
    for lane in found.lanes:
        for op in lane.ops:
            for source, target in op.memory:
                kind, rank = (reads, source) if target == lane.rank else (writes, target)
                kind[rank] += found.sizes.lengths[op.length] * op.memory_width
    return reads, writes


@pytest.mark.parametrize(("result", "nbytes"), [("", 4), ("bfloat16", 2), ("float8_e4m3fn", 1)])
def test_what_is_written_has_the_width_of_the_result(result, nbytes):
    reads, writes = crossing(result)
    share = ELEMENTS // RANKS
    assert reads == dict.fromkeys(range(RANKS), (RANKS - 1) * share * 4)
    assert writes == dict.fromkeys(range(RANKS), (RANKS - 1) * share * nbytes)


def test_a_switch_that_copies_takes_wider_data_as_often():
    """Pairs that are there twice stand for values that are twice as wide."""
    routes = {(1, 0): (11, 20), (2, 0): (12, 20), (0, 1): (10, 21), (0, 2): (10, 22)}
    reads, writes = [(1, 0), (2, 0)], [(0, 1), (0, 2)]

    def links(pairs):
        return sorted(multicast(tuple(pairs), [routes[pair] for pair in pairs], 0))

    assert links(reads) == [11, 12, 20]
    assert links(reads * 2) == [11, 11, 12, 12, 20, 20]
    assert links(writes * 2) == [10, 10, 21, 21, 22, 22]
