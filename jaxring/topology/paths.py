"""The distance of two devices of a machine in NCCL's terms: the type of the best path between them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jaxring.topology.machine import cpu_list
from jaxring.topology.routes import LEVELS, Route, Routes
from jaxring.topology.wiring import Wiring, wire

if TYPE_CHECKING:
    from collections.abc import Collection

    from jaxring.topology.machine import Gpu, Machine, Net

MEANING = {
    "loc": "the same device",
    "nvl": "NVLink, directly or by NVSwitch",
    "nvb": "NVLink by way of another GPU",
    "c2c": "NVLink-C2C to the CPU",
    "pix": "one PCI switch between",
    "pxb": "several PCI switches between",
    "p2c": "NVLink-C2C to the CPU, and PCI from there",
    "pxn": "NVLink to a GPU that is near the NIC",
    "phb": "the CPU's host bridge between",
    "sys": "another CPU's memory between",
    "net": "a network between",
}


@functools.lru_cache(maxsize=8)
def wired(machine: Machine) -> tuple[Wiring, Routes]:
    """A machine's fabric and its paths."""
    wiring = wire(machine)
    return wiring, Routes(wiring.fabric)


def route(machine: Machine, one: Net | Gpu, other: Net | Gpu) -> Route | None:
    """The best path of two devices, None where nothing joins them."""
    wiring, routes = wired(machine)
    return routes.best(wiring.vertex(one), wiring.vertex(other))


def of_devices(machine: Machine, one: Net | Gpu, other: Net | Gpu) -> str:
    """The level of two devices, one of `LEVELS`. Two ports of one card are the same device."""
    if one.busid and one.busid == other.busid:
        return "loc"
    best = route(machine, one, other)
    return best.level if best else "sys"


def to_gpu(machine: Machine, nic: str, gpu: str) -> str:
    """The level of two PCI functions by their bus ids, with no GPU between; "sys" where one of them is not known."""
    wiring, routes = wired(machine)
    if nic not in wiring.at or gpu not in wiring.at:
        return "sys"
    best = routes.best(wiring.at[gpu], wiring.at[nic], relay=False)
    return best.level if best else "sys"


def within(level: str, farthest: str) -> bool:
    """Whether a level is no farther than another."""
    return LEVELS.index(level) <= LEVELS.index(farthest)


def nics_near(machine: Machine, gpu: str, level: str) -> list[str]:
    """Names of the NICs that are no farther than `level` from the GPU with that bus id. LOC: none, as NCCL has it."""
    if level == "loc":
        return []
    near = [net.name for net in machine.nets if within(to_gpu(machine, net.busid, gpu), level)]
    return list(dict.fromkeys(near))


def to_cpus(machine: Machine, busid: str, cpus: Collection[int]) -> str:
    """The level of a PCI device and a thread that may run on `cpus`: "phb" beside its own CPU, "sys" elsewhere."""
    known = {pci.busid: pci.numa for pci in machine.pcis}
    if busid not in known:
        return "phb"  # nothing is known, so nothing is preferred
    own = machine.path(busid, known[busid])[0]
    near = next((cpu for cpu in machine.cpus if f"cpu {cpu.numa}" == own), None)
    if near is None or not near.affinity:
        return "phb"
    return "phb" if cpu_list(near.affinity) & set(cpus) else "sys"
