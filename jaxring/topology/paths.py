"""The distance of two devices in NCCL's terms: the farthest kind of connection on the path between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.settings.kinds import DISTANCES

if TYPE_CHECKING:
    from collections.abc import Collection

    from jaxring.topology.machine import Gpu, Machine, Net

MEANING = {
    "loc": "the same device",
    "nvl": "NVLink",
    "pix": "one PCI switch between",
    "pxb": "several PCI switches between",
    "phb": "the CPU's host bridge between",
    "sys": "another CPU's memory between",
}


def between(one: tuple[str, ...], other: tuple[str, ...]) -> str:
    """The level of two paths as `Machine.path` gives them."""
    if one == other:
        return "loc"
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if shared == 0:
        return "sys"
    if shared == 1:  # only the CPU
        return "phb"
    return "pix" if max(len(one), len(other)) - shared <= 1 else "pxb"


def of_devices(machine: Machine, one: Net | Gpu, other: Net | Gpu) -> str:
    """The level of two devices; "nvl" where NVLink joins them, directly or by a switch."""
    ends = [{busid for busid, _ in getattr(device, "nvlinks", ())} for device in (one, other)]
    if one != other and ends[0] and ends[1] and (one.busid in ends[1] or ends[0] & ends[1] & _switches(machine)):
        return "nvl"
    return between(machine.path(one.busid, one.numa), machine.path(other.busid, other.numa))


def _switches(machine: Machine) -> set[str]:
    """Ends of NVLinks that are no GPU: NVSwitches. A file names all of them, or one by an id of its own."""
    gpus = {gpu.busid for gpu in machine.gpus}
    return {busid for gpu in machine.gpus for busid, _ in gpu.nvlinks} - gpus


def to_gpu(machine: Machine, nic: str, gpu: str) -> str:
    """The level of two PCI devices by their bus ids; "sys" where one of them is not known."""
    known = {pci.busid: pci.numa for pci in machine.pcis}
    if nic not in known or gpu not in known:
        return "sys"
    return between(machine.path(nic, known[nic]), machine.path(gpu, known[gpu]))


def nics_near(machine: Machine, gpu: str, level: str) -> list[str]:
    """Names of the NICs that are no farther than `level` from the GPU with that bus id. LOC: none, as NCCL has it."""
    if level == DISTANCES[0]:
        return []
    near = DISTANCES[: DISTANCES.index(level) + 1]
    return list(dict.fromkeys(net.name for net in machine.nets if to_gpu(machine, net.busid, gpu) in near))


def to_cpus(machine: Machine, busid: str, cpus: Collection[int]) -> str:
    """The level of a PCI device and a thread that may run on `cpus`: "phb" beside its own CPU, "sys" elsewhere."""
    from jaxring.topology.machine import cpu_list

    numa = next((pci.numa for pci in machine.pcis if pci.busid == busid), None)
    if numa is not None:
        numa = int(machine.path(busid, numa)[0].removeprefix("cpu "))
    near = next((cpu for cpu in machine.cpus if cpu.numa == numa), None)
    if near is None or not near.affinity:
        return "phb"  # nothing is known, so nothing is preferred
    return "phb" if cpu_list(near.affinity) & set(cpus) else "sys"
