"""The fabric of a machine: its GPUs, NICs, switches and CPUs, with the speed of each link between them.

As NCCL has it, all NVSwitches of a machine count as one, and all its CPUs are linked with each other.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from jaxring.topology import speeds
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, completed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NVSWITCH = "NVSwitch"
NETWORK = "network"


@dataclasses.dataclass(frozen=True)
class Wiring:
    """A machine and its fabric. ``at``: the vertex of each name, and of each PCI function by its bus id.

    Rank r of the fabric is ``machine.gpus[r]``.
    """

    machine: Machine
    fabric: Fabric
    at: dict[str, int] = dataclasses.field(compare=False, repr=False)

    def vertex(self, device: Gpu | Net) -> int:
        """The vertex of a GPU or of a NIC's port."""
        return self.at[name(device)]

    @functools.cached_property
    def nics(self) -> tuple[int, ...]:
        """The vertices of the NICs' ports, in the order of ``machine.nets``; one that is listed twice counts once."""
        return tuple(dict.fromkeys(self.vertex(net) for net in self.machine.nets))

    def nic_speed(self, nic: int) -> float:
        """GB/s between a port, given as its vertex, and the network."""
        return next(speeds.nic(net.mbps) for net in self.machine.nets if self.vertex(net) == nic)


def name(device: Gpu | Net) -> str:
    """What a GPU or a NIC's port is called: "GPU0", "mlx5_0", or "mlx5_0:2" for a second port."""
    if isinstance(device, Gpu):
        return f"GPU{device.dev}"
    return device.name if device.port <= 1 else f"{device.name}:{device.port}"


def wire(machine: Machine) -> Wiring:
    """The fabric of a machine; bare PCI functions of GPUs and NICs are taken for such (`completed`).

    Raises ValueError for two GPUs of one number, and for a NIC that is called as another device.
    """
    machine = completed(machine)
    builder = _Builder()
    builder.build(machine)
    return Wiring(machine, Fabric(tuple(builder.vertices), tuple(builder.links)), builder.at)


def cluster(wirings: Sequence[Wiring]) -> Fabric:
    """Several machines joined by one network that is never the bottleneck: NICs are linked to it at their own speed.

    Vertices are called "0/GPU0", "1/GPU0" and so on, by the number of their machine.
    """
    vertices = [Vertex(NETWORK, VertexKind.SWITCH, -1)]
    links: list[Link] = []
    for number, wired in enumerate(wirings):
        first = len(vertices)
        vertices += [Vertex(f"{number}/{v.name}", v.kind, number) for v in wired.fabric.vertices]
        links += [
            dataclasses.replace(link, source=link.source + first, target=link.target + first)
            for link in wired.fabric.links
        ]
        for nic in wired.nics:
            links += _both(first + nic, 0, wired.nic_speed(nic), speeds.NET_US, "net")
    return Fabric(tuple(vertices), tuple(links))


def _both(one: int, other: int, gigabytes: float, latency: float, kind: str) -> Iterable[Link]:
    return (Link(one, other, gigabytes, latency, kind), Link(other, one, gigabytes, latency, kind))


class _Builder:
    def __init__(self) -> None:
        self.vertices: list[Vertex] = []
        self.links: list[Link] = []
        self.at: dict[str, int] = {}

    def add(self, called: str, kind: VertexKind) -> int:
        self.vertices.append(Vertex(called, kind))
        self.at[called] = len(self.vertices) - 1
        return self.at[called]

    def join(self, one: int, other: int, gigabytes: float, latency: float, kind: str) -> None:
        self.links += _both(one, other, gigabytes, latency, kind)

    def build(self, machine: Machine) -> None:
        for gpu in machine.gpus:
            if name(gpu) in self.at:
                raise ValueError(f"two GPUs have the number {gpu.dev}: {gpu.busid!r} and another one")
            self.add(name(gpu), VertexKind.RANK)
        known = {cpu.numa: cpu for cpu in machine.cpus}
        numas = [each.numa for devices in (machine.pcis, machine.nets, machine.gpus) for each in devices]
        cpus = [known.get(numa, Cpu(numa)) for numa in dict.fromkeys([*known, *numas])]
        for number, cpu in enumerate(cpus):
            vertex = self.add(f"CPU{cpu.numa}", VertexKind.CPU)
            for other in cpus[:number]:
                speed = min(speeds.between_cpus(cpu), speeds.between_cpus(other))
                self.join(self.at[f"CPU{other.numa}"], vertex, speed, speeds.CPU_US, "cpu")
        self._pci(machine)
        self._nics(machine)
        self._nvlinks(machine)

    def _pci(self, machine: Machine) -> None:
        of_gpu = {gpu.busid: gpu for gpu in machine.gpus}
        cards = {net.busid for net in machine.nets}
        by_id = {pci.busid: pci for pci in machine.pcis}
        for pci in by_id.values():
            if pci.busid in of_gpu:
                self.at[pci.busid] = self.at[name(of_gpu[pci.busid])]
            else:
                self.add(pci.busid, VertexKind.NIC if pci.busid in cards else VertexKind.PCI)
        for pci in by_id.values():
            above = self.at[pci.parent if pci.parent in by_id else f"CPU{pci.numa}"]
            gpu = of_gpu.get(pci.busid)
            speed = speeds.pcie(pci.speed, pci.width, gpu.sm if gpu else 0)
            if above != self.at[pci.busid]:
                self.join(self.at[pci.busid], above, speed, speeds.PCIE_US, "pcie")
        for gpu in machine.gpus:
            if gpu.busid not in by_id:
                self.join(self.at[name(gpu)], self.at[f"CPU{gpu.numa}"], speeds.pcie("", 0, gpu.sm), 1.0, "pcie")

    def _nics(self, machine: Machine) -> None:
        """Ports hang at their card, or at the CPU where they are no PCI device."""
        seen: set[tuple[int, int]] = set()
        for net in machine.nets:
            above = self.at.get(net.busid, self.at[f"CPU{net.numa}"])
            called = name(net)
            port = self.at[called] if called in self.at else self.add(called, VertexKind.NIC)
            if self.vertices[port].kind is not VertexKind.NIC:
                raise ValueError(f"a NIC is called {called!r}, as another device is")
            if port != above and (port, above) not in seen:
                seen.add((port, above))
                self.join(port, above, speeds.nic(net.mbps), speeds.PCIE_US, "pcie")

    def _nvlinks(self, machine: Machine) -> None:
        by_id = {gpu.busid: gpu for gpu in machine.gpus}
        for gpu in machine.gpus:
            here, one = self.at[name(gpu)], speeds.nvlink(gpu.sm)
            to_switch = 0
            for target, count in gpu.nvlinks:
                other = by_id.get(target)
                if other is None:
                    to_switch += max(0, count)
                elif other != gpu and count > 0:  # both ends list it; a virtual machine may show a GPU as its own peer
                    self.links.append(Link(here, self.at[name(other)], count * one, speeds.NVLINK_US, "nvlink"))
            if to_switch:
                switch = self.at[NVSWITCH] if NVSWITCH in self.at else self.add(NVSWITCH, VertexKind.NVSWITCH)
                self.join(here, switch, to_switch * one, speeds.NVLINK_US, "nvlink")
            if gpu.c2c > 0:
                self.join(here, self.at[f"CPU{gpu.numa}"], gpu.c2c, speeds.CPU_US, "c2c")
