"""NCCL's topology XML: read for JAXRING_TOPO_FILE, written by `jaxring topo --xml`."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from jaxring.errors import SettingsError
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BYTES = 16 << 20
_MAX_DEPTH = 64
_MAX_CPUS = 1 << 16


def read(path: str) -> Machine:
    """The machine that a file describes. Raises SettingsError naming the file and what is wrong with it."""
    try:
        with pathlib.Path(path).open("rb") as file:
            return parse(file.read(_MAX_BYTES + 1), path)
    except OSError as error:
        raise SettingsError(f"The topology file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise SettingsError(f"{path} is no topology in NCCL's XML: {error}.") from None


def parse(data: bytes, name: str) -> Machine:
    """The machine that these bytes describe, found in `name`. Raises ValueError."""
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes, which no topology needs")
    try:
        system = ET.fromstring(data)
    except (ET.ParseError, LookupError) as error:  # LookupError: an encoding that there is not
        raise ValueError(str(error)) from None
    if system.tag != "system":
        raise ValueError(f"its outermost element is <{system.tag}> and not <system>")
    cpus: list[Cpu] = []
    found: list[Pci | Net | Gpu] = []
    for cpu in system.iter("cpu"):
        numa = int(cpu.get("numaid", "-1"))
        affinity = _cpus(cpu.get("affinity", ""))
        cpus.append(Cpu(numa, affinity, cpu.get("arch", ""), cpu.get("vendor", "")))
        found += _below(cpu, numa, "", 0)
    pcis = tuple(each for each in found if isinstance(each, Pci))
    nets = tuple(each for each in found if isinstance(each, Net))
    return Machine(tuple(cpus), pcis, nets, tuple(each for each in found if isinstance(each, Gpu)), name)


def _below(element: ET.Element, numa: int, parent: str, depth: int) -> Iterator[Pci | Net | Gpu]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"its elements are more than {_MAX_DEPTH} deep")
    for child in element:
        if child.tag == "pci":
            busid = child.get("busid", "").lower()
            width = int(child.get("link_width", "0") or 0)
            yield Pci(busid, numa, parent, child.get("class", ""), child.get("link_speed", ""), width)
            yield from _below(child, numa, busid, depth + 1)
        elif child.tag == "nic":
            yield from _below(child, numa, parent, depth + 1)
        elif child.tag == "net":
            speed, port = int(child.get("speed", "0")), int(child.get("port", "1"))
            guid, gdr = child.get("guid", ""), child.get("gdr", "0") == "1"
            yield Net(child.get("name", ""), parent, numa, port, speed, guid, gdr)
        elif child.tag == "gpu":
            links = tuple((n.get("target", "").lower(), int(n.get("count", "1"))) for n in child.iter("nvlink"))
            yield Gpu(int(child.get("dev", "0")), parent, numa, int(child.get("sm", "0")), links)


def _cpus(mask: str) -> str:
    """NCCL's mask of CPUs, 32 to a word ("00000000,0000000f"), as the kernel's list of each."""
    digits = mask.replace(",", "") or "0"
    bits = int(digits, 16) if len(digits) <= _MAX_CPUS // 4 else -1
    if bits < 0:
        raise ValueError(f"an affinity is not a mask of at most {_MAX_CPUS} CPUs")
    return ",".join(str(i) for i in range(bits.bit_length()) if bits >> i & 1)


def _mask(cpus: str) -> str:
    from jaxring.topology.machine import cpu_list

    bits = sum(1 << i for i in cpu_list(cpus))
    words = f"{bits:x}".rjust(-(-max(1, bits.bit_length()) // 32) * 8, "0")
    return ",".join(words[i : i + 8] for i in range(0, len(words), 8))


def text(machine: Machine) -> str:
    """The machine as NCCL writes it."""
    system = ET.Element("system", version="1")
    at: dict[str, ET.Element] = {}
    of_numa: dict[int, ET.Element] = {}
    for cpu in machine.cpus:
        attributes = {"numaid": str(cpu.numa), "affinity": _mask(cpu.affinity), "arch": cpu.arch, "vendor": cpu.vendor}
        of_numa[cpu.numa] = ET.SubElement(system, "cpu", {k: v for k, v in attributes.items() if v})
    first = next(iter(of_numa.values()), system)
    for pci in machine.pcis:  # parents come before their children
        above = at[pci.parent] if pci.parent in at else of_numa.get(pci.numa, first)
        attributes = {"busid": pci.busid, "class": pci.device_class}
        attributes |= {"link_speed": pci.speed, "link_width": str(pci.width)}
        at[pci.busid] = ET.SubElement(above, "pci", attributes)
    for gpu in machine.gpus:
        element = ET.SubElement(at.get(gpu.busid, first), "gpu", dev=str(gpu.dev), sm=str(gpu.sm))
        for target, count in gpu.nvlinks:
            ET.SubElement(element, "nvlink", target=target, count=str(count))
    nics: dict[tuple[str, int], ET.Element] = {}
    for number, net in enumerate(machine.nets):
        above = at[net.busid] if net.busid in at else of_numa.get(net.numa, first)
        key = (net.busid, net.numa)
        nic = nics[key] if key in nics else ET.SubElement(above, "nic")
        nics[key] = nic
        attributes = {"name": net.name, "dev": str(number), "speed": str(net.mbps), "port": str(net.port)}
        ET.SubElement(nic, "net", attributes | {"guid": net.guid or "0x0", "gdr": str(int(net.gdr))})
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"
