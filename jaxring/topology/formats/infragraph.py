"""InfraGraph (https://infragraph.dev): devices with components and links, instances of them, and edges between.

Each component of type xpu is a rank, in the order of the file; the instance that holds it is its machine. Edges go both
ways at the bandwidth of their link. Within devices that hold no xpu, such as switches, a link may have no bandwidth: it
is never the bottleneck then. A link without a latency has none.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind
from jaxring.topology.formats.marked import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.topology.formats.marked import File

_KINDS = {"xpu": VertexKind.RANK, "nic": VertexKind.NIC, "cpu": VertexKind.CPU}
# GB/s and us by the names of units; a transfer of PCIe's has no length of its own.
_GIGABYTES = {"gigabits_per_second": 1 / 8, "gigabytes_per_second": 1.0}
_MICROSECONDS = {"ms": 1000.0, "us": 1.0, "ns": 0.001}
_MOST_VERTICES, _MOST_EDGES = 1 << 19, 1 << 21
Path = tuple[tuple[str, int], ...]  # names of components with their numbers, from an instance or a device inwards


@dataclasses.dataclass(frozen=True)
class _Speed:
    """GB/s, None where nothing is said, and us."""

    gigabytes: float | None
    latency: float


@dataclasses.dataclass(frozen=True)
class _Edge:
    a: Path
    b: Path
    link: str
    speed: _Speed
    line: int


@dataclasses.dataclass(frozen=True)
class _Device:
    """``counts``: how many there are of each component; ``kinds``: what it is; its devices are called as it is."""

    name: str
    counts: dict[str, int]
    kinds: dict[str, str]
    table: Table


def is_one(root: object) -> bool:
    """Whether a file's content is meant for this."""
    return isinstance(root, Table) and bool({"devices", "instances"} & root.keys())


def read(file: File) -> Fabric:
    """The fabric. Raises ValueError with the line of what is missing, unknown or too much."""
    return _Reader(file).fabric()


class _Reader:
    def __init__(self, file: File) -> None:
        self.file = file
        self.root: Table = file.root
        self.devices = {name: self._device(name, table) for name, table in self._named(self.root, "devices").items()}
        self.edges = 0

    def fabric(self) -> Fabric:
        root = self.root
        instances = self._named(root, "instances")
        vertices: list[Vertex] = []
        at: dict[Path, int] = {}
        joined: dict[tuple[int, int], _Edge] = {}
        counts: dict[str, tuple[str, int]] = {}
        machine = 0
        for name, table in instances.items():
            device = self._known(table, "device")
            counts[name] = (device.name, self._count(table))
            inside = list(self._leaves(device, (), ()))
            within = [edge for part in self._parts(device, (), ()) for edge in self._edges(*part)]
            computes = any(kind == "xpu" for _, kind in inside)
            for number in range(counts[name][1]):
                here: Path = ((name, number),)
                for path, kind in inside:
                    at[here + path] = len(vertices)
                    where = machine if computes else -1
                    other = VertexKind.PCI if computes else VertexKind.SWITCH
                    vertices.append(Vertex(_said(here + path), _KINDS.get(kind, other), where))
                machine += computes
                self._limit(table, len(vertices))
                for edge in within:
                    self._join(joined, at, dataclasses.replace(edge, a=here + edge.a, b=here + edge.b), computes)
        links = self._links(root)
        for edge in self._outer(root, counts, links):
            self._join(joined, at, edge, True)
        if not any(vertex.kind is VertexKind.RANK for vertex in vertices):
            raise self.file.wrong(root.line, "no instance holds an xpu, so there are no ranks")
        free = sum(edge.speed.gigabytes or 0.0 for edge in joined.values()) or 1.0
        made: list[Link] = []
        for ends, edge in joined.items():
            speed, kind = edge.speed.gigabytes, edge.link
            if speed is None:
                speed, kind = free, f"{edge.link} (no limit)"
            made += (Link(*each, speed, edge.speed.latency, kind) for each in (ends, ends[::-1]))
        return Fabric(tuple(vertices), tuple(made))

    def _limit(self, table: Table, vertices: int) -> None:
        if vertices > _MOST_VERTICES:
            raise self.file.wrong(table.line, f"there are more than {_MOST_VERTICES} components up to here")

    def _join(self, joined: dict[tuple[int, int], _Edge], at: dict[Path, int], edge: _Edge, needs_speed: bool) -> None:
        self.edges += 1
        if self.edges > _MOST_EDGES:
            raise self.file.wrong(edge.line, f"there are more than {_MOST_EDGES} edges up to here")
        if needs_speed and edge.speed.gigabytes is None:
            raise self.file.wrong(edge.line, f"the link {edge.link} of this edge says no physical bandwidth")
        for end in (edge.a, edge.b):
            if end not in at:
                raise self.file.wrong(edge.line, f"{_said(end)} is a device; an edge joins components in it")
        a, b = at[edge.a], at[edge.b]
        if a != b:
            joined.pop((b, a), None)
            joined[a, b] = edge

    def _named(self, table: Table, key: str) -> dict[str, Table]:
        """The tables of a list, by their names."""
        found: dict[str, Table] = {}
        rows = self.file.get(table, key, list, "a list of tables with a name each")
        for each, line in zip(rows, rows.lines, strict=True):
            if not isinstance(each, Table):
                raise self.file.wrong(line, f"an entry of {key} is no table")
            name = self.file.get(each, "name", str, f"each of {key} has a name")
            if name in found:
                raise self.file.wrong(line, f"there are two {key} called {name}")
            found[name] = each
        return found

    def _device(self, name: str, table: Table) -> _Device:
        counts, kinds = {}, {}
        for called, component in self._named(table, "components").items():
            counts[called] = self._count(component)
            kinds[called] = self.file.get(component, "choice", str, "a component says what it is, such as xpu")
        return _Device(name, counts, kinds, table)

    def _known(self, table: Table, key: str) -> _Device:
        name = self.file.get(table, key, str, "the name of a device")
        if name not in self.devices:
            raise self.file.wrong(table.lines[key], f"there is no device {name!r}; there are {', '.join(self.devices)}")
        return self.devices[name]

    def _count(self, table: Table) -> int:
        count: int = self.file.get(table, "count", int, "a whole number from 1")
        if count < 1 or count > _MOST_VERTICES:
            raise self.file.wrong(table.lines["count"], f"count is {count}, not from 1 to {_MOST_VERTICES}")
        return count

    def _inner(self, device: _Device, component: str, above: tuple[str, ...]) -> _Device:
        """The device that a component of that kind is."""
        if component in above or component == device.name:
            raise self.file.wrong(device.table.line, f"the device {component} is a part of itself")
        if component not in self.devices:
            raise self.file.wrong(
                device.table.line, f"{device.name} holds a device {component}, which devices does not describe"
            )
        return self.devices[component]

    def _leaves(self, device: _Device, path: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
        """The components that are no devices, with their kinds."""
        for component, count in device.counts.items():
            for number in range(count):
                here = (*path, (component, number))
                if device.kinds[component] == "device":
                    inner = self._inner(device, component, above)
                    yield from self._leaves(inner, here, (*above, device.name))
                else:
                    yield here, device.kinds[component]

    def _parts(self, device: _Device, path: Path, above: tuple[str, ...]) -> Iterator[tuple[_Device, Path]]:
        """The device and those in it."""
        yield device, path
        for component, count in device.counts.items():
            if device.kinds[component] == "device":
                inner = self._inner(device, component, above)
                for number in range(count):
                    yield from self._parts(inner, (*path, (component, number)), (*above, device.name))

    def _edges(self, device: _Device, path: Path) -> Iterator[_Edge]:
        links = self._links(device.table)
        for table in self._tables(device.table, "edges"):
            ends = []
            for key in ("ep1", "ep2"):
                end = self.file.get(table, key, dict, "an end, with a component")
                text = self.file.get(end, "component", str, "the name of a component")
                within = self.file.get(end, "device", (str, type(None)), "the name of a device", None)
                text = f"{within}.{text}" if within else text
                ends.append([path + each for each in self._expanded(device, text, end.lines["component"])])
            yield from self._joined(table, ends[0], ends[1], links)

    def _outer(self, root: Table, counts: dict[str, tuple[str, int]], links: dict[str, _Speed]) -> Iterator[_Edge]:
        """The edges between instances."""
        for table in self._tables(root, "edges"):
            ends = []
            for key in ("ep1", "ep2"):
                end = self.file.get(table, key, dict, "an end, with an instance and a component")
                text = self.file.get(end, "instance", str, "the name of an instance")
                line = end.lines["instance"]
                name = text.partition("[")[0]
                if name not in counts:
                    raise self.file.wrong(line, f"there is no instance {name!r}; there are {', '.join(counts)}")
                device, count = counts[name]
                numbers = self._numbers(text, count, line)
                text = self.file.get(end, "component", str, "the name of a component")
                inside = self._expanded(self.devices[device], text, end.lines["component"])
                ends.append([((name, number), *path) for number in numbers for path in inside])
            yield from self._joined(table, ends[0], ends[1], links)

    def _tables(self, table: Table, key: str) -> Iterator[Table]:
        rows = self.file.get(table, key, list, "a list of tables", [])
        for position, each in enumerate(rows):
            if not isinstance(each, Table):
                raise self.file.wrong(rows.lines[position], f"an entry of {key} is no table")
            yield each

    def _joined(self, table: Table, a: list[Path], b: list[Path], links: dict[str, _Speed]) -> Iterator[_Edge]:
        scheme = self.file.get(table, "scheme", str, "one2one or many2many")
        link = self.file.get(table, "link", str, "the name of a link")
        if link not in links:
            raise self.file.wrong(table.lines["link"], f"there is no link {link!r}; there are {', '.join(links)}")
        if scheme == "one2one":
            pairs: Any = zip(a, b, strict=False)
        elif scheme == "many2many":
            pairs = itertools.product(a, b)
        else:
            raise self.file.wrong(table.lines["scheme"], f"scheme is {scheme!r}, not one2one or many2many")
        return (_Edge(one, other, link, links[link], table.line) for one, other in pairs)

    def _expanded(self, device: _Device, text: str, line: int) -> list[Path]:
        """The components that a text such as "cx5[0:2].port[0]" names."""
        found: list[Path] = [()]
        for position, part in enumerate(text.split(".")):
            name = part.partition("[")[0]
            if position:
                inner = found[0][-1][0] if found else ""
                if inner not in self.devices:
                    raise self.file.wrong(line, f"{inner} in {text!r} is no device")
                device = self.devices[inner]
            if name not in device.counts:
                raise self.file.wrong(
                    line, f"{device.name} has no component {name!r}; it has {', '.join(device.counts)}"
                )
            numbers = self._numbers(part, device.counts[name], line)
            found = [(*path, (name, number)) for path in found for number in numbers]
        return found

    def _numbers(self, text: str, count: int, line: int) -> list[int]:
        """What "[0]", "[0:2]", "[::2]" or nothing behind a name picks of so many; an index counts from the end where it
        is negative."""
        name, bracket, rest = text.partition("[")
        if not bracket:
            return list(range(count))
        inside, closed, behind = rest.partition("]")
        try:
            given = [int(each) if each.strip() else None for each in inside.split(":")]
            if not closed or behind or len(given) > 3:
                raise ValueError
            picked = range(count)[slice(*given)] if len(given) > 1 or given[0] is None else [range(count)[given[0]]]
        except (IndexError, ValueError):
            raise self.file.wrong(line, f"{text!r} picks none of the {count} that {name} has") from None
        if not picked:
            raise self.file.wrong(line, f"{text!r} picks none of the {count} that {name} has")
        return list(picked)

    def _links(self, table: Table) -> dict[str, _Speed]:
        if "links" not in table:
            return {}
        found = {}
        for name, link in self._named(table, "links").items():
            physical = self.file.get(link, "physical", dict, "a table", None)
            bandwidth = self._quantity(physical, "bandwidth", _GIGABYTES)
            latency = self._quantity(physical, "latency", _MICROSECONDS)
            if bandwidth is not None and bandwidth <= 0:
                raise self.file.wrong(physical.lines["bandwidth"], "bandwidth is not above 0")
            found[name] = _Speed(bandwidth, latency or 0.0)
        return found

    def _quantity(self, physical: Any, key: str, units: dict[str, float]) -> float | None:
        table = None if physical is None else self.file.get(physical, key, dict, "a table with a unit", None)
        if table is None:
            return None
        unit = table.get("choice") or next((each for each in table if each != "choice"), None)
        if not isinstance(unit, str) or unit not in units:
            raise self.file.wrong(table.line, f"{key} is in {unit}, not in {', '.join(units)}")
        value = self.file.get(table, unit, (int, float), "a number")
        if not 0 <= value < math.inf:
            raise self.file.wrong(table.lines[unit], f"{key} is {value}, not a number from 0")
        return float(value) * units[unit]


def _said(path: Path) -> str:
    return ".".join(f"{name}.{number}" for name, number in path)
