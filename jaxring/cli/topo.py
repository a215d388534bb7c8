"""Show how this machine is put together: CPUs, PCI switches, NICs and GPUs, and how far each is from each.

    jaxring topo
    jaxring topo --file topology.xml      another machine's, from NCCL's XML
    jaxring topo --xml                    this machine's, in NCCL's XML
    srun jaxring topo --job               process 0's host, as all processes of the job on it see it together
    jaxring topo --paths                  the best path of each pair, with its GB/s
    jaxring topo --rings                  rings and trees, what part they are of what the machine can do, and why
    jaxring topo --graph rings.xml        these rings for NCCL (NCCL_GRAPH_FILE)
    jaxring topo --rings --gpus 0,4       among these GPUs only, as a mesh axis has them
    jaxring topo --rings --join other.xml rings through this machine and another one, of another kind
    jaxring topo --plan trees.json        the trees of an all-reduce as a schedule, for programs and jaxring simulate
    jaxring topo --svg machine.svg        a drawing, with the rings and the bottleneck
    jaxring topo --file network.yml       a network, from ASTRA-sim's network file or InfraGraph (also with --rings)

Distances are NCCL's: LOC the same device, NVL NVLink, NVB NVLink by way of another GPU, C2C NVLink-C2C, PIX one PCI
switch between, PXB several, P2C a CPU that is reached by C2C, PXN NVLink to a GPU near the NIC, PHB the CPU's host
bridge, SYS another CPU. A NIC no farther from a GPU than JAXRING_NET_GDR_LEVEL is marked with *.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from jaxring.cli import arguments as types
from jaxring.cli import tables, topo_joined, topo_network, topo_search
from jaxring.settings import load
from jaxring.topology import detect, paths, xml
from jaxring.topology.formats import reading
from jaxring.topology.routes import LEVELS
from jaxring.topology.wiring import name

if TYPE_CHECKING:
    from jaxring.topology.machine import Gpu, Machine, Net

HELP = "show CPUs, PCI, NICs and GPUs, and their distances"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring topo`."""
    file = "a topology in NCCL's XML (JAXRING_TOPO_FILE), ASTRA-sim's network file, or InfraGraph"
    parser.add_argument("--file", default="", metavar="FILE", help=file)
    add = parser.add_argument
    add("--xml", action="store_true", help="print NCCL's XML instead")
    add("--job", action="store_true", help="merge what the processes of this job see on the host of its process 0")
    add("--paths", action="store_true", help="print the type and the GB/s of each pair's best path instead")
    add("--rings", action="store_true", help="search rings and trees, and print them beside what the machine can do")
    add("--machines", type=types.positive, default=1, metavar="N", help="for a job on N such machines (default: 1)")
    help_ = "a further machine of the job, which may be of another kind, from NCCL's XML; may be given more than once"
    add("--join", action="append", default=[], metavar="FILE", help=help_)
    add("--cross-nic", action="store_true", help="a ring may leave a machine by another NIC than it came in by")
    help_ = "search among these GPUs of each machine only, by numbers with commas; a plan's ranks are in this order"
    add("--gpus", type=_numbers, default=[], metavar="LIST", help=help_)
    help_ = "steps of each search at most (default: 100 for rings, 60 for trees)"
    add("--steps", type=types.counted, default=None, metavar="N", help=help_)
    help_ = "search, and write the all-reduce by the trees as an MSCCL++ execution plan"
    add("--plan", default="", metavar="FILE", help=help_)
    add("--graph", default="", metavar="FILE", help="search, and write the rings as NCCL's graph XML")
    add("--compare", default="", metavar="FILE", help="search, and compare with the rings of NCCL's graph XML")
    add("--svg", default="", metavar="FILE", help="draw the machine; with --rings also these and the bottleneck")
    add("--json", action="store_true", help="print paths, and with --rings what was found, as JSON instead")


def run(arguments: argparse.Namespace) -> int:
    """Print it. Raises SettingsError for a file that is no topology, JaxringError where there is nothing to search."""
    if arguments.file.endswith(reading.SUFFIXES):
        return topo_network.run(arguments)
    values = load(os.environ)
    if arguments.file:
        values = dataclasses.replace(values, topo_file=arguments.file)
    machine = detect.machine(values)
    if arguments.join:
        return topo_joined.run(machine, arguments)
    if arguments.job:
        from jaxring.cli import topo_job

        merged = topo_job.merged(machine, values)
        if merged is None:
            return 0
        machine = merged
    if arguments.xml:
        print(xml.text(machine), end="")
        return 0
    if _search(machine, arguments):
        return 0
    out = tables.console()
    out.print(tables.tree(_tree(machine)))
    devices: list[tuple[str, Gpu | Net]] = [(name(gpu), gpu) for gpu in machine.gpus]
    devices += [(name(net), net) for net in machine.nets]
    near = values.net_gdr_level
    short = [f"G{i}" for i in range(len(machine.gpus))] + [f"N{i}" for i in range(len(machine.nets))]
    rows = [
        [number, called, *(_cell(machine, one, other, near) for _, other in devices)]
        for number, (called, one) in zip(short, devices, strict=True)
    ]
    out.print(tables.table("Distances", ("", "device", *short), rows))
    if machine.gpus and machine.nets:
        nearest = [[name(gpu), ", ".join(_nearest(machine, gpu))] for gpu in machine.gpus]
        out.print(tables.table("Nearest NICs", ("GPU", "NICs"), nearest))
    _say_unknown(out, machine)
    return 0


def _search(machine: Machine, arguments: argparse.Namespace) -> bool:
    """What needs paths or a search. Returns whether anything of it was asked for."""
    paths_only = arguments.paths or arguments.json
    files = arguments.graph, arguments.compare, arguments.plan, arguments.svg
    searches = topo_search.check(arguments)
    if not (paths_only or arguments.rings or any(files)):
        return False
    found = None
    if searches:
        job = arguments.machines, arguments.cross_nic, arguments.gpus, arguments.steps
        found = topo_search.search(machine, *job)
    if arguments.json:
        print(topo_search.as_json(machine, found))
        return True
    out = tables.console()
    if arguments.paths:
        topo_search.show_paths(out, machine)
    if found and arguments.rings:
        topo_search.show_rings(out, found)
    if found and arguments.graph:
        print(topo_search.write_graph(found, arguments.graph, arguments.cross_nic))
    if found and arguments.plan:
        print(topo_search.write_plan(found.trees, arguments.plan, topo_search.places(found, arguments.gpus)))
    if found and arguments.compare:
        print(topo_search.compare(machine, found, arguments.compare))
    if arguments.svg:
        print(topo_search.write_drawing(machine, found, arguments.svg))
    _say_unknown(out, machine)
    return True


def _numbers(text: str) -> list[int]:
    """GPUs by their numbers."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of GPUs: write 0,4")
    return [int(part) for part in parts]


def _say_unknown(out: Any, machine: Machine) -> None:
    said = topo_search.unknown_links(machine)
    if said:
        out.print(said, highlight=False, soft_wrap=True)


def _cell(machine: Machine, one: Gpu | Net, other: Gpu | Net, near: str) -> str:
    level = paths.of_devices(machine, one, other)
    mixed = type(one) is not type(other)
    gdr = mixed and level != "pxn" and paths.within(level, near)
    return level.upper() + ("*" if gdr else "")


def _nearest(machine: Machine, gpu: Gpu) -> list[str]:
    levels = [LEVELS.index(paths.of_devices(machine, gpu, net)) for net in machine.nets]
    return [name(net) for net, level in zip(machine.nets, levels, strict=True) if level == min(levels)]


def _tree(machine: Machine) -> Any:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(f"machine, from {machine.source}"))
    cpus = {c.numa: tree.add(Text(f"CPU {c.numa} {c.arch} {c.vendor}".rstrip())) for c in machine.cpus}
    if not cpus:
        cpus[0] = tree.add(Text("CPU 0"))
    first = next(iter(cpus.values()))
    of_bus: dict[str, Any] = {}
    for pci in machine.pcis:
        above = of_bus.get(pci.parent) or cpus.get(pci.numa, first)
        what = "switch" if pci.device_class.startswith("0x0604") else "device"
        speed = f" x{pci.width} {pci.speed}" if pci.width else ""
        of_bus[pci.busid] = above.add(Text(f"{what} {pci.busid}{speed}"))
    for gpu in machine.gpus:
        links = sum(count for _, count in gpu.nvlinks)
        joined = f", {links} NVLinks" if links else "" if gpu.links_known else ", NVLinks not known"
        joined += f", C2C {gpu.c2c:g} GB/s" if gpu.c2c else ""
        of_bus.get(gpu.busid, cpus.get(gpu.numa, first)).add(Text(f"{name(gpu)}{joined}"))
    for net in machine.nets:
        speed = f" {net.mbps / 1000:g} Gbit/s" if net.mbps else ""
        of_bus.get(net.busid, cpus.get(net.numa, first)).add(Text(f"NIC {name(net)}{speed}"))
    return tree
