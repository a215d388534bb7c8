"""One machine from what several processes of it see: cgroups and containers hide devices from some of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci, cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def fused(machines: Sequence[Machine]) -> Machine:
    """All that any of them has; what one does not know of a device is taken from another that does.

    GPUs that several call by one number are numbered anew, by their bus ids, as NVML does. Raises ValueError where two
    contradict each other, so that they cannot be one machine.
    """
    cpus: dict[int, Cpu] = {}
    pcis: dict[str, Pci] = {}
    nets: dict[tuple[str, int], Net] = {}
    gpus: dict[str, Gpu] = {}
    for machine in machines:
        for cpu in machine.cpus:
            cpus[cpu.numa] = _cpu(cpus.get(cpu.numa, cpu), cpu)
        for pci in machine.pcis:
            pcis[pci.busid] = _pci(pcis.get(pci.busid, pci), pci, machine.source)
        for net in machine.nets:
            nets[net.name, net.port] = _net(nets.get((net.name, net.port), net), net, machine.source)
        for gpu in machine.gpus:
            gpus[gpu.busid] = _gpu(gpus.get(gpu.busid, gpu), gpu)
    return Machine(
        tuple(cpus[numa] for numa in sorted(cpus)),
        tuple(_parents_first(pcis)),
        tuple(_numbered_nets(nets.values())),
        tuple(_numbered_gpus(gpus.values())),
        ", ".join(dict.fromkeys(machine.source for machine in machines)),
    )


def _cpu(one: Cpu, other: Cpu) -> Cpu:
    affinity = ",".join(map(str, sorted(cpu_list(one.affinity) | cpu_list(other.affinity))))
    return Cpu(
        one.numa,
        one.affinity if one.affinity == other.affinity else affinity,
        one.arch or other.arch,
        one.vendor or other.vendor,
        max(one.family, other.family),
        max(one.model, other.model),
    )


def _pci(one: Pci, other: Pci, source: str) -> Pci:
    if one.numa != other.numa or (one.parent and other.parent and one.parent != other.parent):
        raise ValueError(
            f"PCI function {one.busid} is below {other.parent or 'the root'} at CPU {other.numa} in {source}, and "
            f"below {one.parent or 'the root'} at CPU {one.numa} elsewhere: these are two machines"
        )
    return dataclasses.replace(
        one,
        parent=one.parent or other.parent,
        device_class=one.device_class or other.device_class,
        speed=one.speed or other.speed,
        width=one.width or other.width,
    )


def _net(one: Net, other: Net, source: str) -> Net:
    if one.busid and other.busid and one.busid != other.busid:
        raise ValueError(
            f"NIC {one.name} is at {other.busid} in {source}, and at {one.busid} elsewhere: these are two machines"
        )
    return dataclasses.replace(
        one,
        busid=one.busid or other.busid,
        mbps=max(one.mbps, other.mbps),
        guid=one.guid or other.guid,
        gdr=one.gdr or other.gdr,
        dev=max(one.dev, other.dev),
    )


def _gpu(one: Gpu, other: Gpu) -> Gpu:
    links = dict(one.nvlinks)
    for target, count in other.nvlinks:
        links[target] = max(count, links.get(target, 0))
    return dataclasses.replace(one, sm=max(one.sm, other.sm), nvlinks=tuple(links.items()), c2c=max(one.c2c, other.c2c))


def _parents_first(pcis: dict[str, Pci]) -> Iterable[Pci]:
    depth: dict[str, int] = {}

    def of(busid: str) -> int:
        if busid not in pcis:
            return 0
        if busid not in depth:
            depth[busid] = 0  # ends a circle
            depth[busid] = 1 + of(pcis[busid].parent)
        return depth[busid]

    return sorted(pcis.values(), key=lambda pci: of(pci.busid))


def _numbered_nets(nets: Iterable[Net]) -> list[Net]:
    """A number that several have says nothing."""
    found = list(nets)
    numbers = [net.dev for net in found]
    return [net if numbers.count(net.dev) == 1 else dataclasses.replace(net, dev=-1) for net in found]


def _numbered_gpus(gpus: Iterable[Gpu]) -> list[Gpu]:
    found = list(gpus)
    if len({gpu.dev for gpu in found}) < len(found):
        found = [dataclasses.replace(gpu, dev=dev) for dev, gpu in enumerate(sorted(found, key=lambda gpu: gpu.busid))]
    return sorted(found, key=lambda gpu: gpu.dev)
