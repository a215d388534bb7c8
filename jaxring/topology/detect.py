"""Reads this machine's topology from /sys, and from NVML what only that knows of GPUs."""

from __future__ import annotations

import pathlib
import platform
import re
from typing import TYPE_CHECKING

from jaxring.topology import nvml, xml
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.settings import Settings

_BUSID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA = "0x10de"


def machine(settings: Settings, sys_root: str = "/sys") -> Machine:
    """The machine of the file that JAXRING_TOPO_FILE names, otherwise that of /sys and NVML. Raises SettingsError.

    What a file leaves out of a device is taken from the device of that bus id that is here (`merged`). A file without a
    CPU describes no machine: it is there for an order of hosts.
    """
    found = nvml.completed(detect(sys_root))
    file = xml.read(settings.topo_file) if settings.topo_file else Machine()
    return merged(file, found) if file.cpus else found


def detect(sys_root: str = "/sys") -> Machine:
    """The machine as /sys describes it. Facts that /sys does not have are left out."""
    root = pathlib.Path(sys_root)
    cpus = tuple(_cpus(root))
    nets = [*_rdma(root), *_interfaces(root)]
    gpus = list(_gpus(root))
    pcis: dict[str, Pci] = {}
    for device, numa in [(net[1], net[0].numa) for net in nets] + [(gpu[1], gpu[0].numa) for gpu in gpus]:
        for pci in _chain(device, numa):
            pcis.setdefault(pci.busid, pci)
    return Machine(cpus, tuple(pcis.values()), tuple(n for n, _ in nets), tuple(g for g, _ in gpus), sys_root)


def line(path: pathlib.Path, default: str = "") -> str:
    """The first line of a small file of the kernel's, `default` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return default


def number(path: pathlib.Path, default: int = 0) -> int:
    """The same of a file that holds a number, however written."""
    try:
        return int(line(path), 0)
    except ValueError:
        return default


def busid(device: str) -> str:
    """The bus id of the PCI function that a path of /sys leads to, "" where it is none."""
    found = _BUSID.findall(device.lower())
    return found[-1] if found else ""


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _cpus(root: pathlib.Path) -> Iterator[Cpu]:
    kind = (platform.machine(), *cpuid())
    nodes = [p for p in _folders(root / "devices/system/node") if re.fullmatch(r"node[0-9]+", p.name)]
    if not nodes:
        yield Cpu(0, line(root / "devices/system/cpu/online"), *kind)
    for node in nodes:
        yield Cpu(int(node.name.removeprefix("node")), line(node / "cpulist"), *kind)


def cpuid(path: str = "/proc/cpuinfo") -> tuple[str, int, int]:
    """Vendor, family and model of the first CPU; "" and -1 where the kernel does not say."""
    found = {"vendor_id": "", "cpu family": "-1", "model": "-1"}
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        text = ""
    for row in text.splitlines():
        key, _, value = row.partition(":")
        if key.strip() in found:
            found[key.strip()] = value.strip()
    family, model = (int(found[key]) if found[key].isdigit() else -1 for key in ("cpu family", "model"))
    return found["vendor_id"], family, model


def _numa(device: pathlib.Path) -> int:
    # -1 where there is but one.
    return max(0, number(device / "numa_node", -1))


def _rdma(root: pathlib.Path) -> Iterator[tuple[Net, pathlib.Path]]:
    for device in _folders(root / "class/infiniband"):
        real = (device / "device").resolve()
        guid = "0x" + line(device / "node_guid").replace(":", "")
        for port in _folders(device / "ports"):
            rate = line(port / "rate").partition(" ")[0]
            mbps = int(1000 * float(rate)) if re.fullmatch(r"[0-9.]+", rate) else 0
            yield Net(device.name, busid(str(real)), _numa(real), int(port.name), mbps, guid), real


def _interfaces(root: pathlib.Path) -> Iterator[tuple[Net, pathlib.Path]]:
    for interface in _folders(root / "class/net"):
        if not (interface / "device").exists():
            continue  # loopback, bridges, tunnels
        real = (interface / "device").resolve()
        yield Net(interface.name, busid(str(real)), _numa(real), mbps=max(0, number(interface / "speed"))), real


def _gpus(root: pathlib.Path) -> Iterator[tuple[Gpu, pathlib.Path]]:
    count = 0
    for device in _folders(root / "bus/pci/devices"):
        if line(device / "vendor") == _NVIDIA and line(device / "class").startswith(("0x0302", "0x0300")):
            real = device.resolve()
            yield Gpu(count, busid(str(real)) or device.name.lower(), _numa(real)), real
            count += 1


def _chain(device: pathlib.Path, numa: int) -> Iterator[Pci]:
    """The switches on the way to a device and the device, the outermost first.

    A switch is two bridges to the kernel, its upstream port and one downstream port for each device, and the root port
    above stands for the CPU: so from the device upwards every second function counts, as NCCL has it.
    """
    functions = [folder for folder in (device, *device.parents) if _BUSID.fullmatch(folder.name.lower())]
    parent = ""
    for folder in reversed(functions[::2]):
        name = folder.name.lower()
        width = number(folder / "current_link_width")
        yield Pci(name, numa, parent, line(folder / "class"), line(folder / "current_link_speed"), width)
        parent = name
