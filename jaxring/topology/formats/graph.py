"""NCCL's graph XML, by which NCCL says which rings and trees it chose (NCCL_GRAPH_DUMP_FILE) and is told which to take
(NCCL_GRAPH_FILE)."""

from __future__ import annotations

import dataclasses
import pathlib
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from jaxring.errors import SettingsError
from jaxring.topology import elements

if TYPE_CHECKING:
    from jaxring.topology.elements import Element
    from jaxring.topology.machine import Machine
    from jaxring.topology.search.channels import Channels
    from jaxring.topology.search.rings import Rings

# NCCL's numbers of a graph (its use) and of a pattern (its shape).
RING_ID, TREE_ID = 0, 1
TREE, RING = 1, 4


@dataclasses.dataclass(frozen=True)
class Channel:
    """``gpus``: numbers of GPUs (NVML's) in their order; ``nets``: NICs at which it enters and leaves, by number."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Graph:
    """One graph of a machine. Speeds are GB/s of each channel, within the machine and between machines."""

    id: int
    pattern: int
    channels: tuple[Channel, ...]
    speed_intra: float
    speed_inter: float
    type_intra: str = "NVL"
    type_inter: str = "PIX"
    cross_nic: int = 0
    same_channels: bool = False

    @property
    def total(self) -> float:
        """GB/s of all channels."""
        return self.speed_intra * len(self.channels)


def read(path: str) -> tuple[Graph, ...]:
    """The graphs of a file. Raises SettingsError naming the file, the line and the reason."""
    try:
        with pathlib.Path(path).open("rb") as file:
            return parse(file.read(elements.MAX_BYTES + 1))
    except OSError as error:
        raise SettingsError(f"The graph file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise SettingsError(f"{path} is no graph in NCCL's XML: {error}.") from None


def parse(data: bytes) -> tuple[Graph, ...]:
    """The graphs that these bytes describe. Raises ValueError with line and reason."""
    found: dict[int, Graph] = {}
    for element in elements.parse(data, "graphs").children():
        if element.tag == "graph":
            graph = _graph(element)
            if graph.id in found:
                raise element.error(f"graph {graph.id} is described twice")
            found[graph.id] = graph
    return tuple(found.values())


def _graph(element: Element) -> Graph:
    channels = tuple(_channel(child) for child in element.children() if child.tag == "channel")
    count = element.number("nchannels", len(channels))
    if count != len(channels):
        raise element.error(f"a graph declares {count} channels and has {len(channels)}")
    speeds = element.real("speedintra", 0.0), element.real("speedinter", 0.0)
    return Graph(
        element.number("id", 0),
        element.number("pattern", RING),
        channels,
        *speeds,
        element.get("typeintra", "LOC"),
        element.get("typeinter", "LOC"),
        element.number("crossnic", 0),
        element.get("samechannels", "0") == "1",
    )


def _channel(element: Element) -> Channel:
    children = element.children()
    gpus = tuple(child.number("dev", 0) for child in children if child.tag == "gpu")
    if len(set(gpus)) != len(gpus):
        raise element.error("a channel visits a GPU twice")
    return Channel(gpus, tuple(child.number("dev", 0) for child in children if child.tag == "net"))


def text(graphs: tuple[Graph, ...]) -> str:
    """The graphs as NCCL writes them."""
    top = ET.Element("graphs", version="1")
    for graph in graphs:
        attributes = {
            "id": str(graph.id),
            "pattern": str(graph.pattern),
            "crossnic": str(graph.cross_nic),
            "nchannels": str(len(graph.channels)),
            "speedintra": f"{graph.speed_intra:.6g}",
            "speedinter": f"{graph.speed_inter:.6g}",
            "latencyinter": "0",
            "typeintra": graph.type_intra,
            "typeinter": graph.type_inter,
            "samechannels": str(int(graph.same_channels)),
        }
        element = ET.SubElement(top, "graph", attributes)
        for channel in graph.channels:
            below = ET.SubElement(element, "channel")
            for net in channel.nets[:1]:
                ET.SubElement(below, "net", dev=str(net))
            for gpu in channel.gpus:
                ET.SubElement(below, "gpu", dev=str(gpu))
            for net in channel.nets[1:]:
                ET.SubElement(below, "net", dev=str(net))
    ET.indent(top)
    return ET.tostring(top, encoding="unicode") + "\n"


def check(graph: Graph, machine: Machine) -> None:
    """Raises ValueError unless each channel of a ring or tree visits all GPUs of the machine, and only its NICs."""
    gpus = {gpu.dev for gpu in machine.gpus}
    nets = {net.dev if net.dev >= 0 else number for number, net in enumerate(machine.nets)}
    for number, channel in enumerate(graph.channels):
        if len(channel.gpus) != len(set(channel.gpus)) or set(channel.gpus) != gpus:
            raise ValueError(
                f"channel {number} visits the GPUs {', '.join(map(str, channel.gpus))}; the machine has "
                f"{', '.join(map(str, sorted(gpus)))}"
            )
        unknown = sorted(set(channel.nets) - nets)
        if unknown:
            raise ValueError(f"channel {number} uses NIC {unknown[0]}, which the machine does not have")


def from_rings(found: Rings, made: Channels, cross_nic: bool = False) -> tuple[Graph, ...]:
    """The graphs of rings that were searched: as rings, and as trees, which within a machine are chains as NCCL's."""
    machine = found.wiring.machine
    of_vertex = {found.wiring.vertex(net): net.dev if net.dev >= 0 else n for n, net in enumerate(machine.nets)}
    numbers = [of_vertex[vertex] for vertex in found.wiring.nics]
    channels = tuple(
        Channel(tuple(machine.gpus[gpu].dev for gpu in ring.order), tuple(numbers[nic] for nic in ring.nics))
        for ring in made.rings
    )
    inside, outside = found.levels
    graph = Graph(
        RING_ID,
        RING,
        channels,
        made.speed,
        made.speed,
        inside.upper(),
        # What NCCL writes on a machine that is alone.
        "PIX" if outside == "loc" else outside.upper(),
        int(cross_nic),
        len(set(channels)) == 1,
    )
    return (graph, dataclasses.replace(graph, id=TREE_ID, pattern=TREE))
