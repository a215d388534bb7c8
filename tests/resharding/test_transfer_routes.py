"""Routes: whatever the layouts, following them gives the result, nothing is sent twice, and no round holds too much."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.resharding.transfer_routes import Leaf, cut, elements, plan

SHAPE = (12, 24)


@st.composite
def layouts(draw):
    """Where devices of 1 to 4 processes have which regions of an array of `SHAPE`: a grid of them, or copies of it."""
    grid = [draw(st.sampled_from([1, 2, 3, 4])) for _ in SHAPE]
    spans = [[(i * n // k, (i + 1) * n // k) for i in range(k)] for n, k in zip(SHAPE, grid, strict=True)]
    regions = list(itertools.product(*spans)) * draw(st.integers(1, 2))
    devices = draw(st.permutations(range(16)))[: len(regions)] if len(regions) <= 16 else range(len(regions))
    found: dict[int, dict[object, None]] = {}
    for device, region in zip(devices, regions, strict=True):
        found.setdefault(device % 4, {})[region] = None
    return {process: tuple(held) for process, held in found.items()}


def at(region):
    return tuple(slice(*span) for span in region)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(layouts(), layouts(), st.sampled_from([1, 4])), min_size=1, max_size=3), st.integers(64, 4096)
)
def test_any_pair_of_layouts(pairs, round_bytes):
    leaves = [Leaf(SHAPE, f"int{8 * itemsize}", itemsize, source, target) for source, target, itemsize in pairs]
    found = plan(leaves, round_bytes)
    values = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    results = [{p: np.full(SHAPE, -1) for p in leaf.target} for leaf in leaves]
    minimum = 0
    for leaf in leaves:
        for process, regions in leaf.target.items():
            needed = np.zeros(SHAPE, bool)
            for region in regions:
                needed[at(region)] = True
            for region in leaf.source.get(process, ()):
                needed[at(region)] = False
            minimum += int(needed.sum()) * leaf.itemsize
    for process, pieces in found.copies.items():
        for piece in pieces:
            assert piece.held in leaves[piece.leaf].source[process]
            results[piece.leaf][process][at(piece.region)] = values[at(piece.region)]
    moved = 0
    sent = np.zeros((4, found.rounds), int)
    came = np.zeros_like(sent)
    for source, target in found.streams:
        assert source != target
        for number, block in found.blocks(source, target):
            assert block.held in leaves[block.leaf].source[source]
            results[block.leaf][target][at(block.region)] = values[at(block.region)]
            sent[source, number] += block.nbytes
            came[target, number] += block.nbytes
            moved += block.nbytes
    assert moved == minimum
    assert sent.max(initial=0) <= found.capacity
    assert came.max(initial=0) <= found.capacity
    for leaf, result in zip(leaves, results, strict=True):
        for process, regions in leaf.target.items():
            for region in regions:
                np.testing.assert_array_equal(result[process][at(region)], values[at(region)])


def test_copies_share_the_sending():
    everywhere = (((0, 8),),)
    found = plan([Leaf((8,), "int8", 1, {0: everywhere, 1: everywhere}, {2: everywhere, 3: everywhere})], 1 << 16)
    assert sorted(source for source, _ in found.streams) == [0, 1]


def test_trees_share_the_capacity_of_a_round():
    """A round's program is compiled for its capacity."""

    def moved(*rows):
        leaves = [Leaf((n, 8), "int8", 1, {0: (((0, n), (0, 8)),)}, {1: (((0, n), (0, 8)),)}) for n in rows]
        found = plan(leaves, 1 << 16)
        return found.rounds, found.capacity

    one = [moved(1000), moved(1024), moved(700, 300)]
    several = [moved(10_000), moved(77_777), moved(20_000, 30_000)]
    assert {capacity for _, capacity in one} == {8192}
    assert all(rounds > 1 for rounds, _ in several)
    assert len({capacity for _, capacity in several}) == 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=4), st.integers(1, 40))
def test_parts_are_all_of_a_region_in_order(extents, most):
    region = tuple((1, 1 + n) for n in extents)
    shape = tuple(1 + n for n in extents)
    order = np.arange(math.prod(shape)).reshape(shape)
    parts = list(cut(region, most))
    assert all(1 <= elements(part) <= most for part in parts)
    found = np.concatenate([order[at(part)].ravel() for part in parts])
    np.testing.assert_array_equal(found, order[at(region)].ravel())
