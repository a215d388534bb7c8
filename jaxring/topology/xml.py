"""NCCL's topology XML: read for JAXRING_TOPO_FILE, written by `jaxring topo --xml`."""

from __future__ import annotations

import pathlib
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from jaxring.errors import SettingsError
from jaxring.topology import elements
from jaxring.topology.elements import Element
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci
from jaxring.topology.wiring import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CPUS = 1 << 16


def read(path: str) -> Machine:
    """The machine that a file describes. Raises SettingsError naming the file and what is wrong with it."""
    try:
        with pathlib.Path(path).open("rb") as file:
            machine = parse(file.read(elements.MAX_BYTES + 1), path)
        wire(machine)  # what has no fabric is refused here, and not where its paths are asked for
        return machine
    except OSError as error:
        raise SettingsError(f"The topology file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise SettingsError(f"{path} is no topology in NCCL's XML: {error}.") from None


def parse(data: bytes, name: str) -> Machine:
    """The machine that these bytes describe, found in `name`. Raises ValueError with line and reason."""
    cpus: list[Cpu] = []
    found: list[Pci | Net | Gpu] = []
    reader = _Reader()
    for cpu in elements.parse(data, "system").children():
        if cpu.tag == "cpu":
            numa = cpu.number("numaid", -1)
            reader.once(cpu, f"CPU {numa}")
            family, model = cpu.number("familyid", -1), cpu.number("modelid", -1)
            cpus.append(Cpu(numa, _cpus(cpu), cpu.get("arch", ""), cpu.get("vendor", ""), family, model))
            found += reader.below(cpu, numa, "")
    pcis = tuple(each for each in found if isinstance(each, Pci))
    nets = tuple(each for each in found if isinstance(each, Net))
    return Machine(tuple(cpus), pcis, nets, tuple(each for each in found if isinstance(each, Gpu)), name)


class _Reader:
    """Reads what is below a CPU. Each CPU, PCI function and GPU is described once; a NIC may be listed at each CPU."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}

    def once(self, element: Element, what: str) -> None:
        if what in self.lines:
            raise element.error(f"{what} is described twice, first on line {self.lines[what]}")
        self.lines[what] = element.line

    def below(self, element: Element, numa: int, parent: str) -> Iterator[Pci | Net | Gpu]:
        for child in element.children():
            if child.tag == "pci":
                busid = child.get("busid", "").lower()
                if not busid:
                    raise child.error("a <pci> has no busid")
                self.once(child, f"PCI function {busid}")
                width = child.number("link_width", 0)
                yield Pci(busid, numa, parent, child.get("class", ""), child.get("link_speed", ""), width)
                yield from self.below(child, numa, busid)
            elif child.tag == "nic":
                yield from self.below(child, numa, parent)
            elif child.tag == "net":
                speed, port = child.number("speed", 0), child.number("port", 1)
                guid, gdr = child.get("guid", ""), child.get("gdr", "0") == "1"
                yield Net(child.get("name", ""), parent, numa, port, speed, guid, gdr, child.number("dev", -1))
            elif child.tag == "gpu":
                dev = child.number("dev", 0)
                self.once(child, f"GPU {dev}")
                if parent:
                    self.once(child, f"the GPU at {parent}")
                inner = child.children()
                links = tuple((n.get("target", "").lower(), n.number("count", 1)) for n in inner if n.tag == "nvlink")
                # MB/s of one C2C link, and their number.
                c2c = sum(n.number("bw", 0) * n.number("count", 1) for n in inner if n.tag == "c2c") / 1000
                yield Gpu(dev, parent, numa, child.number("sm", 0), links, c2c)


def _cpus(cpu: Element) -> str:
    """NCCL's mask of CPUs, 32 to a word ("00000000,0000000f"), as the kernel's list of each."""
    digits = cpu.get("affinity", "").replace(",", "") or "0"
    if len(digits) > _MAX_CPUS // 4 or not re.fullmatch("[0-9a-fA-F]+", digits):
        raise cpu.error(f"an affinity is not a mask of at most {_MAX_CPUS} CPUs")
    bits = int(digits, 16)
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
        attributes |= {"familyid": str(cpu.family)} if cpu.family >= 0 else {}
        attributes |= {"modelid": str(cpu.model)} if cpu.model >= 0 else {}
        of_numa[cpu.numa] = ET.SubElement(system, "cpu", {k: v for k, v in attributes.items() if v})
    first = next(iter(of_numa.values()), system)
    for pci in machine.pcis:  # parents come before their children
        above = at[pci.parent] if pci.parent in at else of_numa.get(pci.numa, first)
        attributes = {"busid": pci.busid, "class": pci.device_class}
        attributes |= {"link_speed": pci.speed, "link_width": str(pci.width)}
        at[pci.busid] = ET.SubElement(above, "pci", attributes)
    for gpu in machine.gpus:
        attributes = {"dev": str(gpu.dev)} | ({"sm": str(gpu.sm)} if gpu.sm else {})  # NCCL asks NVML for one left out
        element = ET.SubElement(at.get(gpu.busid, first), "gpu", attributes)
        for target, count in gpu.nvlinks:
            ET.SubElement(element, "nvlink", target=target, count=str(count))
        if gpu.c2c:
            ET.SubElement(element, "c2c", bw=str(round(1000 * gpu.c2c)), count="1")
    nics: dict[tuple[str, int], ET.Element] = {}
    for number, net in enumerate(machine.nets):
        above = at[net.busid] if net.busid in at else of_numa.get(net.numa, first)
        key = (net.busid, net.numa)
        nic = nics[key] if key in nics else ET.SubElement(above, "nic")
        nics[key] = nic
        attributes = {
            "name": net.name,
            "dev": str(net.dev if net.dev >= 0 else number),
            "speed": str(net.mbps),
            "port": str(net.port),
        }
        ET.SubElement(nic, "net", attributes | {"guid": net.guid or "0x0", "gdr": str(int(net.gdr))})
    ET.indent(system)
    return ET.tostring(system, encoding="unicode") + "\n"
