"""The bound against brute force over all sets and partitions, and against an exact linear program."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from jaxring.topology import xml
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from jaxring.topology.search.bound import COLLECTIVES, bound
from jaxring.topology.search.usable import usable
from jaxring.topology.wiring import cluster, wire
from tests.topology.machines import by_files, nvlink_machine, nvswitch_machine, pcie_machine, shared_files
from tests.topology.search.fabrics import random_fabric

CASES = [(seed, 2 + seed % 4, seed % 3, bool(seed % 2)) for seed in range(24)]


def out_of(fabric: Fabric, inside) -> Fraction:
    return sum(
        (Fraction(str(k.gigabytes)) for k in fabric.links if k.source in inside and k.target not in inside), Fraction(0)
    )


def sets(count: int):
    return (set(chosen) for size in range(1, count) for chosen in itertools.combinations(range(count), size))


def partitions(items):
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [{items[0]}, *rest]
        for i, block in enumerate(rest):
            yield [*rest[:i], block | {items[0]}, *rest[i + 1 :]]


@pytest.mark.parametrize(("seed", "ranks", "switches", "both_ways"), CASES)
def test_no_set_of_vertices_is_worse(seed, ranks, switches, both_ways):
    fabric = random_fabric(seed, ranks, switches, both_ways)
    everyone = set(fabric.ranks)
    bad = [s for s in sets(len(fabric.vertices)) if s & everyone and everyone - s]
    gather = min(out_of(fabric, s) / len(s & everyone) for s in bad)
    scatter = min(out_of(fabric, set(range(len(fabric.vertices))) - s) / len(s & everyone) for s in bad)
    assert bound(fabric, "all_gather").bus == gather * (ranks - 1)
    assert bound(fabric, "reduce_scatter").algorithm == scatter * ranks
    for root in range(ranks):
        assert bound(fabric, "broadcast", root).bus == min(out_of(fabric, s) for s in bad if fabric.ranks[root] in s)


@pytest.mark.parametrize(("seed", "ranks", "switches", "both_ways"), CASES)
def test_no_partition_of_the_ranks_is_worse(seed, ranks, switches, both_ways):
    fabric = random_fabric(seed, ranks, switches, both_ways)
    extra = [set(range(ranks, len(fabric.vertices)))]
    switches_in = [set(c) for size in range(switches + 1) for c in itertools.combinations(sorted(extra[0]), size)]
    everyone = set(range(len(fabric.vertices)))

    def around(group, inwards):
        cuts = (group | more for more in switches_in)
        return min(out_of(fabric, everyone - cut if inwards else cut) for cut in cuts)

    worst = min(
        sum(around(group, inwards) for group in groups) / (2 * (len(groups) - 1))
        for groups in partitions(list(fabric.ranks))
        if len(groups) > 1
        for inwards in (True, False)
    )
    assert bound(fabric, "all_reduce").algorithm == worst


@pytest.mark.parametrize(("seed", "ranks", "switches", "both_ways"), CASES)
def test_an_exact_linear_program_agrees(seed, ranks, switches, both_ways):
    """All-gather as flows: each rank sends all others the same rate, and what goes to several may share links.

    The rate is possible if and only if every rank can receive it from all others at once (ForestColl, theorem 1), each
    sink with flows of its own.
    """
    highspy = pytest.importorskip("highspy")
    fabric = random_fabric(seed, ranks, switches, both_ways)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    rate = solver.addVariable(0, solver.inf)
    for sink in fabric.ranks:
        flows = [solver.addVariable(0, link.gigabytes) for link in fabric.links]
        for vertex in range(len(fabric.vertices)):
            if vertex == sink:
                continue
            out = sum(flow for flow, link in zip(flows, fabric.links, strict=True) if link.source == vertex)
            into = sum(flow for flow, link in zip(flows, fabric.links, strict=True) if link.target == vertex)
            solver.addConstr(out - into == (rate if vertex in fabric.ranks else 0))
    solver.maximize(rate)
    assert solver.val(rate) == pytest.approx(float(bound(fabric, "all_gather").bus) / (ranks - 1), rel=1e-9)


def test_the_set_that_limits_and_its_links():
    """Two pairs of GPUs with a thin link between the pairs."""
    fabric = wire(nvlink_machine({(0, 1): 4, (2, 3): 4, (1, 2): 1}, 4)).fabric
    fabric = Fabric(fabric.vertices, tuple(link for link in fabric.links if link.kind == "nvlink"))
    found = bound(fabric, "all_gather")
    assert (found.bus, found.algorithm) == (30, 40)
    (inside,) = found.groups
    assert {0, 1} == inside & set(fabric.ranks) or {2, 3} == inside & set(fabric.ranks)
    assert [{fabric.links[i].source, fabric.links[i].target} for i in found.links] == [{1, 2}]
    both = bound(fabric, "all_reduce")
    assert both.algorithm == 20
    assert [group & set(fabric.ranks) for group in both.groups] in ([{0, 1}, {2, 3}], [{2, 3}, {0, 1}])


def test_equal_ranks_at_a_switch_get_what_one_link_carries():
    fabric = usable(wire(nvswitch_machine(8))).fabric
    for collective in COLLECTIVES:
        assert bound(fabric, collective).bus == Fraction("370.8")


def test_a_rank_that_nothing_reaches_leaves_nothing():
    fabric = cluster([wire(pcie_machine(2))] * 2)  # no NICs
    assert [bound(fabric, collective).bus for collective in COLLECTIVES] == [0, 0, 0, 0]


def test_steps_that_run_out_leave_a_bound():
    fabric = random_fabric(5, 5, 2, True)
    proven = bound(fabric, "all_gather")
    assert proven.proven
    early = bound(fabric, "all_gather", steps=0)
    assert not early.proven
    assert early.bus >= proven.bus
    assert not bound(fabric, "broadcast", steps=1).proven
    assert not bound(fabric, "all_reduce", steps=0).proven


def test_what_has_no_bound_is_an_error():
    with pytest.raises(ValueError, match="between ranks, and this fabric has 1"):
        bound(Fabric((Vertex("a", VertexKind.RANK),), ()), "all_gather")
    two = Fabric((Vertex("a", VertexKind.RANK), Vertex("b", VertexKind.RANK)), (Link(0, 1, 1.0, 0.0, "net"),))
    with pytest.raises(ValueError, match="no bound of 'all_to_all'"):
        bound(two, "all_to_all")


@by_files("file", shared_files("**/*topo*.xml"))
def test_real_machines_bounds_are_what_leaves_their_groups(file):
    fabric = usable(wire(xml.read(str(file)))).fabric
    for collective in COLLECTIVES:
        found = bound(fabric, collective)
        assert found.proven
        assert found.bus > 0
        assert found.links
    gather = bound(fabric, "all_gather")
    (inside,) = gather.groups
    leaving = sum(fabric.links[link].gigabytes for link in gather.links)
    ranks_inside = sum(rank in inside for rank in fabric.ranks)
    assert float(gather.algorithm) / len(fabric.ranks) == pytest.approx(leaving / ranks_inside)
