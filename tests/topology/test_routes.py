"""Best paths in NCCL's terms."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.topology import paths
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci
from jaxring.topology.routes import LEVELS, Routes
from jaxring.topology.wiring import cluster, wire
from tests.topology.machines import GPU_CLASS, NIC_CLASS, nvlink_machine, nvswitch_machine, pcie_machine


def level(machine, one, other, relay=True):
    wiring = wire(machine)
    return Routes(wiring.fabric).best(wiring.at[one], wiring.at[other], relay)


def test_types_by_pci_and_cpus():
    machine = pcie_machine(4, cpus=2, nics=2)
    found = [level(machine, "GPU0", other) for other in ("GPU0", "GPU1", "mlx5_0", "GPU2", "CPU0", "CPU1")]
    assert [route.level for route in found] == ["loc", "pix", "pix", "sys", "phb", "sys"]
    assert [route.gigabytes for route in found] == [float("inf"), 24.0, 24.0, 16.0, 24.0, 16.0]
    direct = pcie_machine(2, switch=False)
    assert level(direct, "GPU0", "GPU1").level == "phb"


def test_nvlink_by_way_of_another_gpu():
    machine = nvlink_machine({(0, 1): 2, (1, 2): 2, (2, 3): 2}, 4)
    assert level(machine, "GPU0", "GPU1") == level(machine, "GPU0", "GPU1", relay=False)
    assert (level(machine, "GPU0", "GPU2").level, level(machine, "GPU0", "GPU2").gigabytes) == ("nvb", 40.0)
    assert level(machine, "GPU0", "GPU2", relay=False).level == "pix"
    assert level(machine, "GPU0", "GPU3").level == "pix"  # one GPU between at most


def test_a_nic_is_reached_by_way_of_a_gpu_that_is_near_it():
    # GPU 0 has no NIC on its CPU, GPU 1 has one.
    machine = pcie_machine(2, cpus=2, nics=1)
    nic = Pci("0000:20:00.0", 1, "0000:01:00.0", NIC_CLASS, "", 16)
    machine = dataclasses.replace(
        machine,
        pcis=(*(pci for pci in machine.pcis if pci.busid != nic.busid), nic),
        nets=(Net("mlx5_0", nic.busid, 1, mbps=100000),),
        gpus=tuple(dataclasses.replace(gpu, nvlinks=(("0000:f0:00.0", 4),)) for gpu in machine.gpus),
    )
    assert level(machine, "GPU1", "mlx5_0").level == "pix"
    assert level(machine, "GPU0", "mlx5_0").level == "pxn"
    assert level(machine, "GPU0", "mlx5_0", relay=False).level == "sys"
    assert paths.to_gpu(machine, nic.busid, machine.gpus[0].busid) == "sys"
    assert level(machine, "GPU0", "GPU1").level == "nvl"


def test_c2c_leads_to_the_cpu_and_on_to_its_nics():
    gpu = Gpu(0, "0000:10:00.0", 0, 90, (), 350.0)
    nic = Pci("0000:20:00.0", 0, "", NIC_CLASS, "32.0 GT/s PCIe", 16)
    pci = Pci(gpu.busid, 0, "", GPU_CLASS, "2.5 GT/s PCIe", 1)
    machine = Machine((Cpu(0, "", "aarch64"),), (pci, nic), (Net("mlx5_0", nic.busid, 0, mbps=400000),), (gpu,))
    assert (level(machine, "GPU0", "CPU0").level, level(machine, "GPU0", "CPU0").gigabytes) == ("c2c", 350.0)
    assert (level(machine, "GPU0", "mlx5_0").level, level(machine, "GPU0", "mlx5_0").gigabytes) == ("p2c", 48.0)


def test_other_machines_are_reached_by_the_network():
    fabric = cluster([wire(nvswitch_machine(2, nics=1))] * 2)
    routes = Routes(fabric)
    route = routes.best(fabric.ranks[0], fabric.ranks[3])
    assert (route.level, route.gigabytes) == ("net", 24.0)
    assert [fabric.links[link].kind for link in route.links].count("net") == 2


def test_a_route_is_the_links_from_end_to_end():
    wiring = wire(pcie_machine(4, cpus=2))
    route = Routes(wiring.fabric).best(wiring.at["GPU0"], wiring.at["GPU3"])
    links = [wiring.fabric.links[index] for index in route.links]
    assert [link.source for link in links] == [0, *(link.target for link in links[:-1])]
    assert links[-1].target == wiring.at["GPU3"]
    assert route.gigabytes == min(link.gigabytes for link in links)


def test_every_level_has_a_meaning_and_an_order():
    assert tuple(paths.MEANING) == LEVELS
    assert paths.within("pxb", "phb")
    assert not paths.within("sys", "phb")


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_joins_a_device_that_has_no_link(which):
    fabric = cluster([wire(pcie_machine(2))] * 2)  # no NICs
    assert Routes(fabric).best(fabric.ranks[which], fabric.ranks[2]) is None
