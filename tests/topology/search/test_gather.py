"""All-gather, reduce-scatter and broadcast by trees: they reach ForestColl's bound, and the verifier accepts them."""

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
from jaxring.plan.schedule import Spec
from jaxring.topology import xml
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from jaxring.topology.search import gather
from jaxring.topology.search.arborescence import cheapest
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import wire
from tests.topology.machines import by_files, nvlink_machine, shared_files
from tests.topology.search.fabrics import random_fabric

COLLECTIVES = ("all_gather", "reduce_scatter", "broadcast")


def assert_fits(found, chosen):
    used = collections.Counter()
    for tree in chosen:
        for link in tree.links:
            used[link] += tree.gigabytes
    for link, carried in used.items():
        assert carried <= found.fabric.links[link].gigabytes * (1 + 1e-6)


def verified(found, root=0):
    parts = gather.equal_parts(found)
    assert_fits(found, itertools.chain(*parts))
    spec = Spec(found.collective, len(found.fabric.ranks), "found", root)
    return steps.build(spec, [tree.parents for trees in parts for tree in trees])


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("seed", range(12))
def test_trees_reach_the_bound(seed, collective):
    """Whether links are as fast both ways or not, and with switches that only pass data on."""
    ranks = 3 + seed % 4
    fabric = random_fabric(seed, ranks, seed % 3, both_ways=bool(seed % 2))
    root = seed % ranks
    found = gather.search(fabric, collective, root, steps=300)
    assert found.share == pytest.approx(1)
    assert found.proven
    assert_fits(found, found.trees)
    for tree in found.trees:
        assert tree.parents.count(-1) == 1
    verified(found, root)


@pytest.mark.parametrize("collective", COLLECTIVES)
@by_files("file", shared_files("**/*topo*.xml"))
def test_real_machines_are_used_in_full(file, collective):
    found = gather.search(usable(wire(xml.read(str(file)))).fabric, collective)
    assert found.share == pytest.approx(1)
    verified(found)


@pytest.mark.parametrize("seed", range(20))
def test_no_arborescence_is_cheaper(seed):
    count = 2 + seed % 4
    costs = np.random.default_rng(seed).integers(1, 6, (count, count)).astype(float)
    root = seed % count

    def cost(parents):
        return sum(costs[parent, vertex] for vertex, parent in enumerate(parents) if parent >= 0)

    def leads_to_root(parents):
        for start in range(count):
            at = start
            for _ in range(count):
                at = parents[at] if at != root else root
            if at != root:
                return False
        return True

    choices = itertools.product(*[[-1] if v == root else [u for u in range(count) if u != v] for v in range(count)])
    found = cheapest(costs, root)
    assert leads_to_root(found)
    assert cost(found) == min(cost(parents) for parents in choices if leads_to_root(parents))


def test_the_engine_gathers_along_found_trees():
    machine = wire(nvlink_machine({(0, 1): 3, (1, 2): 1, (2, 3): 2, (3, 0): 2, (0, 2): 1, (1, 4): 2, (4, 3): 1}, 5))
    fabric = usable(machine).fabric
    x = np.arange(5 * 5 * 803, dtype=np.int32).reshape(5, 5 * 803)
    mesh = Mesh(np.array(jax.devices()[:5]), ("r",))
    for collective in ("all_gather", "reduce_scatter"):
        parts = gather.equal_parts(gather.search(fabric, collective))
        lanes = steps.TreeLanes(tuple(tree.parents for trees in parts for tree in trees))
        name, each, all_ = f"test_{collective}_trees", len(parts[0]), len(lanes.trees)
        jaxring.register_algorithm(
            name, collective, lanes, pieces=lambda _, n=each: n, nlanes=lambda _, n=all_: n, scratch_chunks=1
        )
    gathered = functools.partial(jaxring.all_gather, axis_name="r", algorithm="test_all_gather_trees", timeout=60)
    run = jax.jit(jax.shard_map(gathered, mesh=mesh, in_specs=P("r"), out_specs=P("r")))
    assert np.array_equal(np.asarray(run(x)).reshape(5, -1), np.tile(x.reshape(1, -1), (5, 1)))
    scattered = functools.partial(
        jaxring.reduce_scatter, axis_name="r", tiled=True, algorithm="test_reduce_scatter_trees", timeout=60
    )
    run = jax.jit(jax.shard_map(lambda v: scattered(v[0]), mesh=mesh, in_specs=P("r"), out_specs=P("r")))
    assert np.array_equal(np.asarray(run(x)), x.sum(0))


def test_what_cannot_be_gathered_is_an_error():
    two = tuple(Vertex(name, VertexKind.RANK) for name in "ab")
    with pytest.raises(ValueError, match="nothing joins some of the ranks"):
        gather.search(Fabric(two, (Link(0, 1, 1.0, 0.0, "net"),)))
    with pytest.raises(ValueError, match="do not 'all_reduce'"):
        gather.search(Fabric(two, ()), "all_reduce")
    with pytest.raises(ValueError, match="tree 1 has the root 0, and the data of rank 1"):
        steps.build(Spec("all_gather", 2, "found"), [(-1, 0), (-1, 0)])
    with pytest.raises(ValueError, match="trees serve all_reduce, all_gather, reduce_scatter, broadcast, and not"):
        steps.build(Spec("all_to_all", 2, "found"), [(-1, 0), (1, -1)])
