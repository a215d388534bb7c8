"""Machines for tests: small ones made here, and real ones from files that lie beside the project, if they do."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest

from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci

if TYPE_CHECKING:
    from collections.abc import Sequence

GPU_CLASS, NIC_CLASS, SWITCH_CLASS = "0x030200", "0x020700", "0x060400"
GEN4 = "16.0 GT/s PCIe"


def shared_files(pattern: str) -> list[pathlib.Path]:
    """Files of real machines that match, none where they are not there."""
    for folder in pathlib.Path(__file__).parents:
        if (folder / "shared/topos").is_dir():
            return sorted((folder / "shared/topos").glob(pattern))
    return []


def by_files(names: str, files: Sequence[pathlib.Path] | Sequence[tuple[pathlib.Path, ...]]) -> pytest.MarkDecorator:
    """Parametrizes a test by files of real machines, or skips it where they are not there."""
    absent = [pytest.mark.real_machines, pytest.mark.skip(reason="real machines' topology files are not here")]
    nothing = pytest.param(*[None] * len(names.split(",")), marks=absent, id="absent")
    return pytest.mark.parametrize(
        names, files or [nothing], ids=lambda file: f"{file.parent.name}-{file.name}" if file else "absent"
    )


def pcie_machine(gpus: int, cpus: int = 1, nics: int = 0, switch: bool = True, vendor: str = "AuthenticAMD") -> Machine:
    """GPUs on PCIe 4, dealt to the CPUs; behind one switch per CPU, or directly."""
    pcis = [Pci(f"0000:0{numa}:00.0", numa, "", SWITCH_CLASS, GEN4, 16) for numa in range(cpus)] if switch else []
    found, nets = [], []
    for dev in range(gpus):
        numa = dev * cpus // gpus
        busid = f"0000:1{dev:x}:00.0"
        pcis.append(Pci(busid, numa, f"0000:0{numa}:00.0" if switch else "", GPU_CLASS, GEN4, 16))
        found.append(Gpu(dev, busid, numa, 80))
    for number in range(nics):
        numa = number * cpus // nics
        busid = f"0000:2{number:x}:00.0"
        pcis.append(Pci(busid, numa, f"0000:0{numa}:00.0" if switch else "", NIC_CLASS, GEN4, 16))
        nets.append(Net(f"mlx5_{number}", busid, numa, mbps=200000))
    hosts = tuple(Cpu(numa, "", "x86_64", vendor) for numa in range(cpus))
    return Machine(hosts, tuple(pcis), tuple(nets), tuple(found), "test")


def nvlink_machine(pairs: dict[tuple[int, int], int], gpus: int, sm: int = 80) -> Machine:
    """GPUs of one CPU with so many NVLinks between pairs, besides PCIe."""
    machine = pcie_machine(gpus)
    links: list[list[tuple[str, int]]] = [[] for _ in range(gpus)]
    for (one, other), count in pairs.items():
        links[one].append((machine.gpus[other].busid, count))
        links[other].append((machine.gpus[one].busid, count))
    found = tuple(Gpu(g.dev, g.busid, g.numa, sm, tuple(links[g.dev])) for g in machine.gpus)
    return Machine(machine.cpus, machine.pcis, machine.nets, found, "test")


def nvswitch_machine(gpus: int, links: int = 18, sm: int = 90, nics: int = 0) -> Machine:
    """GPUs that reach all others by NVSwitch."""
    machine = pcie_machine(gpus, nics=nics)
    found = tuple(Gpu(g.dev, g.busid, g.numa, sm, (("0000:f0:00.0", links),)) for g in machine.gpus)
    return Machine(machine.cpus, machine.pcis, machine.nets, found, "test")
