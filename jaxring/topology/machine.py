"""The parts of a machine through which data passes on its way to another machine."""

from __future__ import annotations

import dataclasses

_GPU_CLASSES = ("0x0302", "0x0300")
_NIC_CLASS = "0x02"


@dataclasses.dataclass(frozen=True)
class Cpu:
    """A NUMA node. ``affinity`` are its CPUs as the kernel lists them ("0-3,8").

    ``family`` and ``model`` are CPUID's, -1 where they are not known.
    """

    numa: int
    affinity: str = ""
    arch: str = ""
    vendor: str = ""
    family: int = -1
    model: int = -1


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
    """A NIC's port: an RDMA device's, or a network interface. ``busid`` is "" where it is no PCI device.

    ``dev``: the number that NCCL's network plugin gives it, -1 where that is not known.
    """

    name: str
    busid: str = ""
    numa: int = 0
    port: int = 1
    mbps: int = 0
    guid: str = ""
    gdr: bool = False
    dev: int = -1


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU. ``nvlinks``: (bus id of the other end, number of links); an NVSwitch is an end like any other.

    ``sm``: ten times its compute capability, 0 where that is not known. ``c2c``: GB/s to its CPU by NVLink-C2C, 0 where
    it has none.
    """

    dev: int
    busid: str
    numa: int = 0
    sm: int = 0
    nvlinks: tuple[tuple[str, int], ...] = ()
    c2c: float = 0.0

    @property
    def links_known(self) -> bool:
        """Whether something said which NVLinks it has. A file and NVML say the compute capability together with them,
        /sys and vendors' skeletons neither."""
        return self.sm > 0 or bool(self.nvlinks)


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


def completed(machine: Machine) -> Machine:
    """The machine with a GPU and a NIC for each bare PCI function of their classes, where it names none at all.

    Vendors' files are such skeletons. What they do not say stays unknown: NVLinks, compute capability, a NIC's speed.
    """
    bare = [pci for pci in machine.pcis if not any(other.parent == pci.busid for other in machine.pcis)]
    gpus, nets = machine.gpus, machine.nets
    if not gpus:
        found = [pci for pci in bare if pci.device_class.startswith(_GPU_CLASSES)]
        gpus = tuple(Gpu(dev, pci.busid, pci.numa) for dev, pci in enumerate(found))
    if not nets:
        nets = tuple(Net(pci.busid, pci.busid, pci.numa) for pci in bare if pci.device_class.startswith(_NIC_CLASS))
    return dataclasses.replace(machine, gpus=gpus, nets=nets)


def cpu_list(text: str) -> set[int]:
    """The numbers of a kernel's list such as "0-3,8". ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def merged(file: Machine, found: Machine) -> Machine:
    """A file's machine, completed by what was found of the same devices, by their bus ids.

    Where the file has bare PCI functions and names no GPU, or no NIC, as vendors' files do, those that were found at
    these functions; otherwise the details that it does not have of a GPU or a NIC that it names.
    """
    known = {pci.busid for pci in file.pcis}
    nets = file.nets or tuple(net for net in found.nets if net.busid in known)
    gpus = file.gpus or tuple(gpu for gpu in found.gpus if gpu.busid in known)
    of_busid = {gpu.busid: gpu for gpu in found.gpus}
    ports = {(net.busid, net.name, net.port): net for net in found.nets}
    gpus = tuple(_detailed(gpu, of_busid.get(gpu.busid, gpu)) for gpu in gpus)
    nets = tuple(
        net if net.mbps else dataclasses.replace(net, mbps=ports.get((net.busid, net.name, net.port), net).mbps)
        for net in nets
    )
    return dataclasses.replace(file, cpus=file.cpus or found.cpus, nets=nets, gpus=gpus)


def _detailed(gpu: Gpu, found: Gpu) -> Gpu:
    if gpu.links_known:
        return gpu
    return dataclasses.replace(gpu, sm=found.sm, nvlinks=found.nvlinks, c2c=gpu.c2c or found.c2c)
