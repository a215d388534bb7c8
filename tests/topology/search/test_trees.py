"""Trees: that they fit, reach the bound, and become schedules that the verifier accepts."""

from __future__ import annotations

import collections
import functools
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan import trees as steps
from jaxring.plan.schedule import Buffer, Spec
from jaxring.topology import xml
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from jaxring.topology.search import rings, trees
from jaxring.topology.search.bound import bound
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import wire
from tests.topology.machines import by_files, nvlink_machine, pcie_machine, shared_files
from tests.topology.search.fabrics import random_fabric


def torus(sizes, speeds) -> Fabric:
    """Ranks in a grid that is closed in each direction, with links of a speed for each direction."""
    points = list(itertools.product(*map(range, sizes)))
    links = {}
    for point in points:
        for axis, (size, speed) in enumerate(zip(sizes, speeds, strict=True)):
            other = (*point[:axis], (point[axis] + 1) % size, *point[axis + 1 :])
            for one, two in ((point, other), (other, point)):
                ends = points.index(one), points.index(two)
                links[*ends, axis] = Link(*ends, speed, 1.0, "nvlink")
    return Fabric(tuple(Vertex(str(point), VertexKind.RANK) for point in points), tuple(links.values()))


def assert_fits(fabric, chosen):
    used = collections.Counter()
    for tree in chosen:
        for link in tree.links:
            used[link] += tree.gigabytes
        assert tree.parents.count(-1) == 1
    for link, carried in used.items():
        assert carried <= fabric.links[link].gigabytes * (1 + 1e-6)


def verified(found, parts):
    """The schedule of some trees; the verifier has accepted it."""
    spec = Spec("all_reduce", len(found.fabric.ranks), "found")
    # The waves make a schedule of many ranks slow to verify.
    return steps.build(spec, [tree.parents for tree in parts], 16 if spec.nranks < 32 else 1)


@pytest.mark.parametrize("seed", range(12))
def test_trees_reach_the_bound_of_links_that_are_as_fast_both_ways(seed):
    """Tutte and Nash-Williams: the worst partition is all that limits a packing of spanning trees."""
    fabric = random_fabric(seed, 3 + seed % 4, seed % 3, both_ways=True)
    found = trees.search(fabric, steps=200)
    assert found.share == pytest.approx(1)
    assert found.proven
    assert_fits(fabric, found.trees)
    verified(found, trees.equal_parts(found))


@pytest.mark.parametrize("seed", range(6))
def test_no_trees_of_links_that_differ_by_direction_exceed_the_bound(seed):
    fabric = random_fabric(seed, 5, 1, both_ways=False)
    found = trees.search(fabric)
    assert found.total <= min(found.limit, float(found.bound.algorithm)) * (1 + 1e-6)
    assert_fits(fabric, found.trees)


@by_files("file", shared_files("**/*topo*.xml"))
def test_real_machines_are_used_in_full(file):
    wiring = wire(xml.read(str(file)))
    found = trees.search(usable(wiring).fabric)
    assert found.share == pytest.approx(1)
    assert found.bus >= rings.search(wiring).total * (1 - 1e-6)
    parts = trees.equal_parts(found)
    assert_fits(found.fabric, parts)
    assert sum(tree.gigabytes for tree in parts) >= 0.97 * found.total
    verified(found, parts)


def test_trees_beat_rings_where_a_slow_link_joins_two_halves():
    """Rings cross it in both directions all the time; of an all-reduce only the sum of each half has to cross."""
    wiring = wire(pcie_machine(8, cpus=2, switch=False, vendor="GenuineIntel"))
    found = trees.search(usable(wiring).fabric)
    assert rings.search(wiring).total == pytest.approx(6)
    assert found.bus == pytest.approx(10.5)
    assert found.share == pytest.approx(1)


def test_128_ranks_of_links_of_three_speeds():
    found = trees.search(torus((4, 4, 8), (100.0, 50.0, 25.0)), steps=0)
    assert found.share > 0.95
    parts = trees.equal_parts(found)
    assert_fits(found.fabric, parts)
    schedule = verified(found, parts)
    assert schedule.nlanes == schedule.pieces == len(parts)


def test_a_schedule_stores_each_piece_once():
    found = trees.search(usable(wire(nvlink_machine({(0, 1): 2, (1, 2): 2, (2, 0): 2}, 3))).fabric)
    schedule = verified(found, trees.equal_parts(found))
    for rank in range(3):
        stored = [s.dst.index for lane in schedule.lanes(rank) for s in lane if s.dst and s.dst.buffer is Buffer.OUTPUT]
        assert sorted(stored) == list(range(schedule.pieces))


def test_the_engine_sums_along_found_trees():
    machine = wire(nvlink_machine({(0, 1): 3, (1, 2): 1, (2, 3): 2, (3, 0): 2, (0, 2): 1, (1, 4): 2, (4, 3): 1}, 5))
    parts = trees.equal_parts(trees.search(usable(machine).fabric))
    assert len({tree.parents for tree in parts}) > 1
    lanes = steps.TreeLanes(tuple(tree.parents for tree in parts))
    count = len(parts)
    jaxring.register_algorithm(
        "test_trees", "all_reduce", lanes, pieces=lanes.pieces, nlanes=lambda _: count, scratch_chunks=1
    )
    x = np.arange(5 * 4001, dtype=np.int32).reshape(5, 4001)
    mesh = Mesh(np.array(jax.devices()[:5]), ("r",))
    body = functools.partial(jaxring.all_reduce, axis_name="r", algorithm="test_trees", timeout=60)
    summed = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P()))(x)
    assert np.array_equal(np.asarray(summed)[0], x.sum(0))


def test_a_search_without_steps_says_what_is_known():
    fabric = random_fabric(7, 6, 0, both_ways=True)
    early = trees.search(fabric, steps=0)
    assert early.steps == 0
    assert early.total <= early.limit * (1 + 1e-6)
    assert early.proven == (early.total >= early.limit * (1 - 1e-6))


def test_a_root_is_in_the_middle():
    assert trees.rooted(((0, 1), (1, 2), (2, 3), (3, 4)), 5) == (1, 2, -1, 2, 3)


@pytest.mark.parametrize(
    ("parents", "why"),
    [((-1, -1), "needs one root"), ((-1, 2), "parents among its 2 ranks"), ((-1, 2, 1), "round in a circle")],
)
def test_what_is_no_tree_is_an_error(parents, why):
    with pytest.raises(ValueError, match=why):
        steps.TreeLanes((parents,))


def test_trees_are_of_so_many_ranks():
    with pytest.raises(ValueError, match="these trees have 2 ranks, and the call has 3"):
        steps.build(Spec("all_reduce", 3, "found"), [(-1, 0)])


def test_ranks_that_nothing_joins_have_no_trees():
    fabric = Fabric(tuple(Vertex(name, VertexKind.RANK) for name in "abc"), (Link(0, 1, 1.0, 0.0, "net"),))
    with pytest.raises(ValueError, match="nothing joins some of the ranks"):
        trees.search(fabric)
    assert bound(fabric, "all_reduce").bus == 0
