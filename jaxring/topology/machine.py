"""The parts of a machine through which data passes on its way to another machine."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cpu:
    """A NUMA node. ``affinity`` are its CPUs as the kernel lists them ("0-3,8")."""

    numa: int
    affinity: str = ""
    arch: str = ""
    vendor: str = ""


@dataclasses.dataclass(frozen=True)
class Pci:
    """A bridge, switch or function, below ``parent`` (a bus id), or below CPU ``numa`` where that is "".

    ``speed`` is the kernel's text ("16.0 GT/s PCIe"), ``width`` the number of lanes.
    """

    busid: str
    numa: int
    parent: str = ""
    device_class: str = ""
    speed: str = ""
    width: int = 0


@dataclasses.dataclass(frozen=True)
class Net:
    """A NIC's port: an RDMA device's, or a network interface. ``busid`` is "" where it is no PCI device."""

    name: str
    busid: str = ""
    numa: int = 0
    port: int = 1
    mbps: int = 0
    guid: str = ""
    gdr: bool = False


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU. ``nvlinks``: (bus id of the other end, number of links); an NVSwitch is an end like any other."""

    dev: int
    busid: str
    numa: int = 0
    sm: int = 0
    nvlinks: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """A whole machine. Bus ids are in lower case."""

    cpus: tuple[Cpu, ...] = ()
    pcis: tuple[Pci, ...] = ()
    nets: tuple[Net, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    source: str = ""

    def path(self, busid: str, numa: int) -> tuple[str, ...]:
        """The path from the NUMA node down to the function: "cpu N", then bus ids."""
        by_id = {pci.busid: pci for pci in self.pcis}
        steps: list[str] = []
        at = by_id.get(busid)
        while at is not None and at.busid not in steps:
            steps.append(at.busid)
            numa = at.numa
            at = by_id.get(at.parent)
        return (f"cpu {numa}", *reversed(steps))


def cpu_list(text: str) -> set[int]:
    """The numbers of a kernel's list such as "0-3,8". ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def merged(file: Machine, found: Machine) -> Machine:
    """A file's machine, completed by what was found where the file has bare PCI functions, as vendors' files do."""
    known = {pci.busid for pci in file.pcis}
    nets = file.nets or tuple(net for net in found.nets if net.busid in known)
    gpus = file.gpus or tuple(gpu for gpu in found.gpus if gpu.busid in known)
    return dataclasses.replace(file, cpus=file.cpus or found.cpus, nets=nets, gpus=gpus)
