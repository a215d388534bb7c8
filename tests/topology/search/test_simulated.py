"""Schedules of found trees in virtual time: they move data about as fast as the search says that they can."""

from __future__ import annotations

import pytest

from jaxring.plan import trees as steps
from jaxring.plan.schedule import Spec
from jaxring.simulate.links.network import Network
from jaxring.simulate.model import Model
from jaxring.topology import xml
from jaxring.topology.search import gather, trees
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import wire
from tests import ROOT
from tests.simulate.support import run
from tests.topology.machines import nvswitch_machine

NBYTES = 128 << 20
MODEL = Model(serial=False, tile_bytes=256 * 1024)
MACHINES = {
    "two sockets": xml.read(str(ROOT / "examples/topology/two_sockets.xml")),
    "mesh": xml.read(str(ROOT / "examples/topology/nvlink_mesh.xml")),
    "switch": nvswitch_machine(8),
}


def rate(schedule, nbytes, fabric):
    """GB/s of the collective's data."""
    played, _ = run(schedule, nbytes, Network(fabric), MODEL)
    return NBYTES / played.time_us / 1000


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.sampled(4)
def test_an_all_reduce_comes_near_the_bound(machine):
    fabric = usable(wire(machine)).fabric
    found = trees.search(fabric)
    parts = [tree.parents for tree in trees.equal_parts(found)]
    spec = Spec("all_reduce", len(fabric.ranks), "found")
    speeds = [rate(steps.build(spec, parts, waves), NBYTES, fabric) for waves in (1, 16, 32)]
    bound = float(found.bound.algorithm)
    assert 0.8 * bound < speeds[1] < speeds[2] < bound
    assert speeds[2] > 0.85 * bound
    # One wave waits for each tile to come down before the next one goes up.
    assert speeds[0] < 0.5 * bound


def test_trees_are_faster_than_rings_where_the_search_says_so():
    fabric = usable(wire(MACHINES["two sockets"])).fabric
    found = trees.search(fabric)
    spec = Spec("all_reduce", len(fabric.ranks), "found")
    by_trees = rate(steps.build(spec, [tree.parents for tree in trees.equal_parts(found)]), NBYTES, fabric)
    by_rings = rate(Spec("all_reduce", len(fabric.ranks), "ring", channels=2), NBYTES, fabric)
    assert by_trees > 1.4 * by_rings


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_an_all_gather_comes_near_the_bound(machine):
    fabric = usable(wire(machine)).fabric
    found = gather.search(fabric)
    ranks = len(fabric.ranks)
    parents = [tree.parents for parts in gather.equal_parts(found) for tree in parts]
    speed = rate(steps.build(Spec("all_gather", ranks, "found"), parents), NBYTES // ranks, fabric)
    assert 0.85 * float(found.bound.algorithm) < speed < float(found.bound.algorithm)
