"""The fabric of a machine: which links it has, and how fast they are."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.topology import speeds, xml
from jaxring.topology.fabric import VertexKind
from jaxring.topology.machine import Cpu, Net
from jaxring.topology.wiring import cluster, wire
from tests.topology.machines import by_files, nvlink_machine, nvswitch_machine, pcie_machine, shared_files


def speed(wiring, one: str, other: str) -> list[float]:
    at = wiring.at
    return [link.gigabytes for link in wiring.fabric.links if (link.source, link.target) == (at[one], at[other])]


@pytest.mark.parametrize(("sm", "each"), [(60, 18.0), (70, 20.0), (80, 20.0), (86, 12.0), (90, 20.6), (100, 40.1)])
def test_an_nvlink_carries_what_nccl_says(sm, each):
    assert speeds.nvlink(sm) == each


@pytest.mark.parametrize(
    ("text", "width", "sm", "expected"),
    [
        ("8.0 GT/s PCIe", 16, 0, 12.0),
        ("16 GT/s", 8, 0, 12.0),
        ("32.0 GT/s PCIe", 16, 0, 48.0),
        ("", 0, 0, 12.0),
        ("Unknown", 0, 80, 24.0),
        ("", 16, 90, 48.0),
    ],
)
def test_a_pcie_link_carries_speed_times_width(text, width, sm, expected):
    assert speeds.pcie(text, width, sm) == expected


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (Cpu(0, "", "x86_64", "AuthenticAMD", 23, 49), 16.0),
        (Cpu(0, "", "x86_64", "AuthenticAMD", 175, 1), 24.0),  # as NCCL's XML writes family 25
        (Cpu(0, "", "x86_64", "AuthenticAMD", 25, 1), 24.0),
        (Cpu(0, "", "x86_64", "GenuineIntel", 6, 143), 22.0),
        (Cpu(0, "", "x86_64", "GenuineIntel", 6, 79), 6.0),
        (Cpu(0, "", "aarch64", ""), 6.0),
    ],
)
def test_cpus_are_told_apart_by_vendor_family_and_model(cpu, expected):
    assert speeds.between_cpus(cpu) == expected


def test_gpus_come_first_and_links_have_their_speeds():
    wiring = wire(pcie_machine(4, cpus=2, nics=2))
    assert [wiring.fabric.vertices[r].name for r in wiring.fabric.ranks] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert wiring.fabric.ranks == (0, 1, 2, 3)
    assert speed(wiring, "GPU0", "0000:00:00.0") == [24.0]
    assert speed(wiring, "CPU0", "CPU1") == speed(wiring, "CPU1", "CPU0") == [16.0]
    assert speed(wiring, "mlx5_1", "0000:21:00.0") == [25.0]
    assert [wiring.fabric.vertices[nic].name for nic in wiring.nics] == ["mlx5_0", "mlx5_1"]


def test_nvlinks_lead_to_gpus_or_to_one_switch_and_never_to_oneself():
    wiring = wire(nvlink_machine({(0, 1): 4, (0, 0): 12}, 2))
    assert speed(wiring, "GPU0", "GPU1") == speed(wiring, "GPU1", "GPU0") == [80.0]
    switched = wire(nvswitch_machine(2))
    assert speed(switched, "GPU1", "NVSwitch") == [pytest.approx(370.8)]


def test_what_a_file_does_not_say_is_taken_from_the_class_of_a_function():
    machine = pcie_machine(2, nics=1)
    wiring = wire(dataclasses.replace(machine, gpus=(), nets=()))
    assert [gpu.busid for gpu in wiring.machine.gpus] == [gpu.busid for gpu in machine.gpus]
    assert [net.name for net in wiring.machine.nets] == ["0000:20:00.0"]


def test_names_that_two_devices_have_are_refused():
    machine = pcie_machine(2)
    same = tuple(dataclasses.replace(gpu, dev=0) for gpu in machine.gpus)
    with pytest.raises(ValueError, match="two GPUs have the number 0"):
        wire(dataclasses.replace(machine, gpus=same))
    with pytest.raises(ValueError, match="a NIC is called 'GPU0'"):
        wire(dataclasses.replace(machine, nets=(Net("GPU0"),)))


def test_a_cluster_joins_machines_at_the_speed_of_their_nics():
    fabric = cluster([wire(pcie_machine(2, nics=1))] * 2)
    assert [fabric.vertices[rank].name for rank in fabric.ranks] == ["0/GPU0", "0/GPU1", "1/GPU0", "1/GPU1"]
    network = next(i for i, vertex in enumerate(fabric.vertices) if vertex.kind is VertexKind.SWITCH)
    joined = [link for link in fabric.links if network in (link.source, link.target)]
    assert [(link.gigabytes, link.kind) for link in joined] == [(25.0, "net")] * 4


@by_files("file", shared_files("**/*topo*.xml"))
def test_real_machines_have_a_fabric(file):
    wiring = wire(xml.read(str(file)))
    assert len(wiring.fabric.ranks) in (4, 8)
    assert wiring.nics
