"""Rings: against brute force, against NCCL's own on real machines, and on machines at random."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import pytest

from jaxring.topology import xml
from jaxring.topology.formats import graph
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci
from jaxring.topology.routes import Routes
from jaxring.topology.search.bound import bound
from jaxring.topology.search.channels import channels
from jaxring.topology.search.rings import search
from jaxring.topology.wiring import cluster, wire
from tests.topology.machines import (
    GPU_CLASS,
    NIC_CLASS,
    SWITCH_CLASS,
    by_files,
    nvlink_machine,
    nvswitch_machine,
    pcie_machine,
    shared_files,
)

SMALL = {
    "pcie, 2 CPUs": pcie_machine(6, cpus=2),
    "pcie, Intel": pcie_machine(4, cpus=2, switch=False, vendor="GenuineIntel"),
    "full mesh": nvlink_machine(dict.fromkeys(itertools.combinations(range(4), 2), 4), 4),
    "chain": nvlink_machine({(i, i + 1): 2 for i in range(4)}, 5),
    "odd mesh": nvlink_machine({(0, 1): 3, (1, 2): 1, (2, 3): 2, (3, 0): 2, (0, 2): 1, (1, 4): 2, (4, 3): 1}, 5),
    "prism": nvlink_machine(
        {(0, 1): 1, (1, 2): 2, (2, 0): 1, (3, 4): 2, (4, 5): 1, (5, 3): 1, (0, 3): 2, (1, 4): 1, (2, 5): 1}, 6
    ),
    "switch": nvswitch_machine(5),
}


def load(found, rings):
    """What each link and port of a machine carries."""
    fabric, routes = found.wiring.fabric, Routes(found.wiring.fabric)
    used = collections.Counter()
    for ring in rings:
        stops = [fabric.ranks[gpu] for gpu in ring.order]
        if ring.nics:
            enter, leave = (found.wiring.nics[nic] for nic in ring.nics)
            used["in", enter] += ring.gigabytes
            used["out", leave] += ring.gigabytes
            stops = [enter, *stops, leave]
        else:
            stops.append(stops[0])
        for hop in itertools.pairwise(stops):
            for link in routes.best(*hop).links:
                used[link] += ring.gigabytes
    return used


def assert_valid(found, rings, members):
    for ring in rings:
        assert sorted(ring.order) == sorted(members)
        assert ring.gigabytes > 0
    for key, carried in load(found, rings).items():
        fits = found.wiring.nic_speed(key[1]) if isinstance(key, tuple) else found.wiring.fabric.links[key].gigabytes
        assert carried <= fits * (1 + 1e-6)


@pytest.mark.parametrize("machine", SMALL.values(), ids=SMALL)
def test_no_set_of_rings_carries_more(machine):
    """All rings of a machine at once, in a linear program of its own."""
    highspy = pytest.importorskip("highspy")
    found = search(wire(machine))
    assert found.proven
    assert_valid(found, found.rings, range(len(machine.gpus)))
    fabric, routes = found.wiring.fabric, Routes(found.wiring.fabric)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    carried = [0.0] * len(fabric.links)
    total = 0.0
    for rest in itertools.permutations(range(1, len(machine.gpus))):
        share = solver.addVariable(0, solver.inf)
        total += share
        for hop in itertools.pairwise([0, *rest, 0]):
            for link in routes.best(*hop).links:
                carried[link] += share
    for link, sum_ in zip(fabric.links, carried, strict=True):
        if not isinstance(sum_, float):
            solver.addConstr(sum_ <= link.gigabytes)
    solver.maximize(total)
    assert found.total == pytest.approx(solver.getObjectiveValue(), rel=1e-6)
    assert found.total <= float(found.bound.bus) * (1 + 1e-6)


@pytest.mark.parametrize("machine", SMALL.values(), ids=SMALL)
def test_channels_of_one_speed_lose_little_to_brute_force(machine):
    """No two or three channels of one speed, whatever their rings, carry more than ours."""
    found = search(wire(machine))
    fabric, routes = found.wiring.fabric, Routes(found.wiring.fabric)
    count = len(machine.gpus)
    orders = ([0, *rest, 0] for rest in itertools.permutations(range(1, count)))
    uses = [
        collections.Counter(link for hop in itertools.pairwise(order) for link in routes.best(*hop).links)
        for order in orders
    ]
    distinct = list({tuple(sorted(use.items())): use for use in uses}.values())
    best = 0.0
    for size in range(1, 4 if count < 6 else 3):
        for chosen in itertools.combinations_with_replacement(distinct, size):
            total = sum(chosen, collections.Counter())
            best = max(best, size * min(fabric.links[link].gigabytes / times for link, times in total.items()))
    made = channels(found)
    assert made.total >= best * (1 - 1e-6)
    assert made.total <= found.total * (1 + 1e-6)
    assert_valid(found, made.rings, range(count))


PAIRS = [
    (folder / topo, folder / graphs)
    for topo, graphs in (("nccl_topo.xml", "nccl_graph.xml"), ("ncv4-topo.xml", "ncv4-graph.xml"))
    for folder in sorted({file.parent for file in shared_files(f"**/{topo}")})
]


@by_files("topology,answer", PAIRS)
def test_real_machines_have_at_least_nccls_rings(topology, answer):
    machine = xml.read(str(topology))
    nccl = next(each for each in graph.read(str(answer)) if each.id == graph.RING_ID)
    found = search(wire(machine))
    made = channels(found)
    assert made.total >= nccl.total * (1 - 1e-6)
    assert_valid(found, made.rings, range(len(machine.gpus)))
    ours, _ = graph.from_rings(found, made)
    graph.check(ours, machine)
    assert found.share == pytest.approx(1)
    # NCCL's rings fit what we think of the machine, which our bound therefore bounds, too.
    assert nccl.total <= float(found.bound.bus) * (1 + 1e-6)


@by_files("file", shared_files("**/*topo*.xml"))
@pytest.mark.parametrize("machines", [1, 2])
def test_real_machines_rings_are_as_good_as_rings_can_be(file, machines):
    wiring = wire(xml.read(str(file)))
    found = search(wiring, machines=machines)
    assert found.proven
    assert 0 < found.share <= 1 + 1e-6
    assert_valid(found, found.rings, range(len(wiring.fabric.ranks)))
    assert all(len(set(ring.nics)) == machines - 1 for ring in found.rings)


def test_each_nic_has_a_ring_of_its_own():
    """Four NICs of 25 GB/s behind one PCIe link each of 24."""
    found = search(wire(nvswitch_machine(8, nics=4)), machines=2)
    assert found.total == pytest.approx(96)
    assert {ring.nics for ring in found.rings} == {(nic, nic) for nic in range(4)}
    joined = cluster([found.wiring] * 2)
    assert found.bound.bus == bound(joined, "all_gather").bus


def test_a_ring_may_leave_by_another_nic_where_that_is_allowed():
    """Each GPU has a CPU of its own and a NIC, and the CPUs' link is slow: a ring comes and goes on its own sides."""
    machine = pcie_machine(2, cpus=2, nics=2, vendor="GenuineIntel")
    machine = dataclasses.replace(machine, nets=tuple(dataclasses.replace(net, mbps=100000) for net in machine.nets))
    machine = dataclasses.replace(
        machine,
        gpus=tuple(dataclasses.replace(gpu, nvlinks=((machine.gpus[1 - gpu.dev].busid, 4),)) for gpu in machine.gpus),
    )
    same = search(wire(machine), machines=2)
    crossed = search(wire(machine), machines=2, cross_nic=True)
    assert all(ring.nics[0] == ring.nics[1] for ring in same.rings)
    assert crossed.total >= same.total * (1 - 1e-9)


def test_some_gpus_of_each_machine():
    """As tensor parallelism leaves them: {0, 4} of each, which reach the other NICs by way of the GPUs between."""
    found = search(wire(nvswitch_machine(8, nics=2)), gpus=(0, 4), machines=4)
    assert all(sorted(ring.order) == [0, 4] for ring in found.rings)
    assert found.total == pytest.approx(48)
    one = search(wire(nvswitch_machine(8, nics=2)), gpus=(3,), machines=2)
    assert one.total == pytest.approx(24)  # its own PCIe link


def test_a_search_without_steps_says_what_is_known():
    machine = SMALL["full mesh"]
    early = search(wire(machine), steps=0)
    assert not early.proven
    assert early.steps == 0
    assert early.total < search(wire(machine)).total <= early.limit * (1 + 1e-6)


@pytest.mark.parametrize(
    ("machine", "options", "why"),
    [
        (pcie_machine(1), {}, "a ring needs two ranks, and there are 1"),
        (pcie_machine(2), {"gpus": ()}, "a ring needs two ranks, and there are 0"),
        (pcie_machine(2), {"machines": 2}, "this machine has none"),
    ],
)
def test_what_has_no_ring_is_an_error(machine, options, why):
    with pytest.raises(ValueError, match=why):
        search(wire(machine), **options)


def test_machines_at_random_have_rings():
    pytest.importorskip("hypothesis")
    from hypothesis import given, settings
    from hypothesis import strategies as some

    speeds = some.sampled_from(["", "2.5 GT/s PCIe", "8.0 GT/s PCIe", "16 GT/s", "32.0 GT/s PCIe", "nonsense"])
    vendors = some.sampled_from(["", "AuthenticAMD", "GenuineIntel"])

    @some.composite
    def machines(draw):
        numas = draw(some.integers(1, 3))
        cpus = tuple(Cpu(numa, "", "x86_64", draw(vendors)) for numa in range(draw(some.integers(0, numas))))
        pcis, gpus, nets = [], [], []
        for number in range(draw(some.integers(0, 4))):
            above = draw(some.sampled_from(["", *(pci.busid for pci in pcis)]))
            pcis.append(
                Pci(f"0000:0{number}:00.0", draw(some.integers(0, numas - 1)), above, SWITCH_CLASS, draw(speeds), 16)
            )
        switches = ["", *(pci.busid for pci in pcis)]
        count = draw(some.integers(2, 6))
        busids = [f"0000:1{dev}:00.0" for dev in range(count)]
        for dev, busid in enumerate(busids):
            numa = draw(some.integers(0, numas - 1))
            if draw(some.booleans()):
                width = draw(some.integers(0, 16))
                pcis.append(Pci(busid, numa, draw(some.sampled_from(switches)), GPU_CLASS, draw(speeds), width))
            ends = some.tuples(some.sampled_from([*busids, "0000:f0:00.0"]), some.integers(0, 6))
            links = tuple(draw(some.lists(ends, max_size=4)))
            c2c = draw(some.sampled_from([0.0, 100.0]))
            gpus.append(Gpu(dev, busid, numa, draw(some.sampled_from([0, 70, 86, 90, 100])), links, c2c))
        for number in range(draw(some.integers(0, 3))):
            busid = f"0000:2{number}:00.0" if draw(some.booleans()) else ""
            if busid:
                pcis.append(Pci(busid, 0, draw(some.sampled_from(switches)), NIC_CLASS, draw(speeds), 16))
            nets.append(Net(f"mlx5_{number}", busid, 0, 1, draw(some.sampled_from([0, 10000, 400000]))))
        return Machine(cpus, tuple(pcis), tuple(nets), tuple(gpus), "random")

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(machines(), some.integers(1, 2), some.booleans())
    def holds(machine, count, cross_nic):
        wiring = wire(machine)
        if count > 1 and not machine.nets:
            return
        found = search(wiring, machines=count, cross_nic=cross_nic)
        assert found.rings
        assert_valid(found, found.rings, range(len(machine.gpus)))
        assert found.total <= min(found.limit, float(found.bound.bus)) * (1 + 1e-6)
        made = channels(found)
        assert_valid(found, made.rings, range(len(machine.gpus)))
        assert graph.parse(graph.text(graph.from_rings(found, made)).encode())

    holds()
