"""A machine as a drawing (SVG): CPUs above, PCI switches below them, GPUs and NICs in a row, NVLink and rings below."""

from __future__ import annotations

import dataclasses
import itertools
from html import escape
from typing import TYPE_CHECKING

from jaxring.topology.fabric import Fabric, Vertex, VertexKind

if TYPE_CHECKING:
    from jaxring.topology.search.report import Found
    from jaxring.topology.search.rings import Ring, Rings
    from jaxring.topology.wiring import Wiring

_COLOURS = ("#0b6bcb", "#1f7a1f", "#9a5b13", "#7d1fa0", "#00838f", "#ad1457", "#5d4037", "#455a64")
_FILL = {
    VertexKind.RANK: "#d7f0d7",
    VertexKind.NIC: "#d6e6fa",
    VertexKind.PCI: "#eeeeee",
    VertexKind.CPU: "#fbe9c6",
    VertexKind.NVSWITCH: "#e8d9f5",
    VertexKind.SWITCH: "#eeeeee",
}
_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 96, 26, 116, 78, 24
_RED = "#d32f2f"
_NETWORK = -1  # what joins machines, where a vertex of one of them stands otherwise


@dataclasses.dataclass(frozen=True)
class _Places:
    at: dict[int, tuple[float, float]]
    width: float
    bottom: float  # of the row of GPUs and NICs


def svg(wiring: Wiring, found: Found | None = None) -> str:
    """The machine; with rings in colours, and what limits it marked in red, where a search is given.

    Of a job on several such machines each ring is the part on one of them, from the NIC where it comes in to that where
    it goes out.
    """
    fabric = wiring.fabric
    limits = _limits(found, len(fabric.vertices)) if found is not None else set()
    places = _place(fabric)
    shapes: list[str] = []
    below = _rings(fabric, places, found.rings, shapes) if found is not None else places.bottom + 20
    switch = next((i for i, vertex in enumerate(fabric.vertices) if vertex.kind is VertexKind.NVSWITCH), None)
    if switch is not None:
        places.at[switch] = (places.width / 2, below + 50)
        below += 80
    lines = _links(fabric, places, limits)
    ports = {end for pair in limits if _NETWORK in pair for end in pair}
    boxes = [
        _box(vertex, *places.at[i], _RED if i in ports else "#555")
        for i, vertex in enumerate(fabric.vertices)
        if i in places.at
    ]
    notes, height = _notes(found, below)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{places.width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {places.width:.0f} {height:.0f}" font-family="sans-serif" font-size="11">'
    )
    ground = f'<rect width="{places.width:.0f}" height="{height:.0f}" fill="white"/>'
    return "\n".join([head, ground, *lines, *shapes, *boxes, *notes, "</svg>"]) + "\n"


def _limits(found: Found, vertices: int) -> set[tuple[int, int]]:
    """The ends of the links that limit it, as vertices of one machine of so many vertices, or `_NETWORK`."""
    links = found.fabric.links
    ends = [(links[i].source, links[i].target) for i in found.rings.bound.links]
    if found.machines == 1:
        return set(ends)
    # The network is the first vertex of a cluster, and then each machine has as many.
    one, other = ([(end[at] - 1) % vertices if end[at] else _NETWORK for end in ends] for at in (0, 1))
    return set(zip(one, other, strict=True))


def _place(fabric: Fabric) -> _Places:
    """GPUs and NICs in one row in the order of the PCI tree, what they hang on above the middle of them."""
    children: dict[int, list[int]] = {}
    cpus = [i for i, vertex in enumerate(fabric.vertices) if vertex.kind is VertexKind.CPU]
    depth = dict.fromkeys(cpus, 0)
    row = list(cpus)
    for vertex in row:
        for index in fabric.leaving[vertex]:
            link = fabric.links[index]
            if link.kind in ("pcie", "c2c") and link.target not in depth:
                depth[link.target] = depth[vertex] + 1
                children.setdefault(vertex, []).append(link.target)
                row.append(link.target)
    deepest = max(depth.values(), default=0)
    at: dict[int, tuple[float, float]] = {}
    leaves = 0

    def place(vertex: int) -> float:
        nonlocal leaves
        middle = [place(child) for child in children.get(vertex, [])]
        if middle:
            x = sum(middle) / len(middle)
        else:
            x = _MARGIN + _WIDTH / 2 + leaves * _ACROSS
            leaves += 1
        leaf = not middle and fabric.vertices[vertex].kind in (VertexKind.RANK, VertexKind.NIC)
        at[vertex] = (x, _MARGIN + (deepest if leaf else depth[vertex]) * _DOWN)
        return x

    for cpu in cpus:
        place(cpu)
    # Room above for the links between CPUs.
    down = max((_lift(at[one][0], at[other][0]) for one in cpus for other in cpus), default=0.0)
    at = {vertex: (x, y + down) for vertex, (x, y) in at.items()}
    width = max(640.0, 2 * _MARGIN + leaves * _ACROSS)
    return _Places(at, width, _MARGIN + down + deepest * _DOWN + _HEIGHT / 2)


def _lift(x1: float, x2: float) -> float:
    """How high an arc between two boxes of one row is."""
    return 22 + 0.13 * abs(x2 - x1)


def _links(fabric: Fabric, places: _Places, limits: set[tuple[int, int]]) -> list[str]:
    """Each pair of vertices once, with its speed; red where one direction limits the machine."""
    drawn: dict[tuple[int, int, str], float] = {}
    for link in fabric.links:
        if link.source in places.at and link.target in places.at:
            key = (min(link.source, link.target), max(link.source, link.target), link.kind)
            drawn[key] = max(drawn.get(key, 0.0), link.gigabytes)
    lines = []
    for (one, other, kind), speed in drawn.items():
        (x1, y1), (x2, y2) = places.at[one], places.at[other]
        red = {(one, other), (other, one)} & limits
        colour = _RED if red else "#76539a" if kind == "nvlink" else "#8a8a8a"
        stroke = f'stroke="{colour}" stroke-width="{min(7.0, 1 + speed / 60) + 2 * bool(red):.1f}" fill="none"'
        if y1 == y2:  # an arc above its row
            lift = _lift(x1, x2)
            curve = f"M{x1:.0f} {y1:.0f} Q{(x1 + x2) / 2:.0f} {y1 - 2 * lift:.0f} {x2:.0f} {y2:.0f}"
            lines.append(f'<path d="{curve}" {stroke}/>')
            label = ((x1 + x2) / 2, y1 - lift)
        else:
            lines.append(f'<path d="M{x1:.0f} {y1:.0f} L{x2:.0f} {y2:.0f}" {stroke}/>')
            label = (x1 + 0.42 * (x2 - x1), y1 + 0.42 * (y2 - y1))
        text = f'<text x="{label[0]:.0f}" y="{label[1]:.0f}" text-anchor="middle" fill="{colour}"'
        # A white rim first: not every viewer knows paint-order.
        lines += [f'{text} stroke="white" stroke-width="3">{speed:.4g}</text>', f"{text}>{speed:.4g}</text>"]
    return lines


def _rings(fabric: Fabric, places: _Places, rings: Rings, shapes: list[str]) -> float:
    """Arcs below the row from each GPU or NIC to the next; returns where they end."""
    lowest = 0.0
    for number, ring in enumerate(rings.rings[: len(_COLOURS)]):
        colour = _COLOURS[number]
        stops = [fabric.ranks[gpu] for gpu in (ring.order if ring.nics else (*ring.order, ring.order[0]))]
        if ring.nics:
            stops = [rings.wiring.nics[ring.nics[0]], *stops, rings.wiring.nics[ring.nics[1]]]
        for one, other in itertools.pairwise(stops):
            (x1, y), (x2, _) = places.at[one], places.at[other]
            y += _HEIGHT / 2
            x1, x2 = x1 + 4 * number - 14, x2 + 4 * number - 14
            deep = 16 + 5 * number + 0.12 * abs(x2 - x1)
            lowest = max(lowest, deep)
            curve = f"M{x1:.0f} {y:.0f} Q{(x1 + x2) / 2:.0f} {y + 2 * deep:.0f} {x2:.0f} {y:.0f}"
            shapes.append(f'<path d="{curve}" stroke="{colour}" stroke-width="1.6" fill="none"/>')
    return places.bottom + lowest + 20


def _box(vertex: Vertex, x: float, y: float, rim: str) -> str:
    left, top = x - _WIDTH / 2, y - _HEIGHT / 2
    box = f'<rect x="{left:.0f}" y="{top:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="4"'
    text = f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{escape(vertex.name)}</text>'
    return f'{box} fill="{_FILL[vertex.kind]}" stroke="{rim}"/>{text}'


def _stops(rings: Rings, ring: Ring) -> str:
    """A ring's GPUs, and the ports by which it comes to a machine and leaves it."""
    gpus, ports = rings.wiring.machine.gpus, rings.wiring.nics
    order = "GPUs " + " ".join(str(gpus[gpu].dev) for gpu in ring.order)
    if not ring.nics:
        return order
    enters, leaves = (rings.wiring.fabric.vertices[ports[nic]].name for nic in ring.nics)
    return f"in by {enters}, {order}, out by {leaves}"


def _notes(found: Found | None, top: float) -> tuple[list[str], float]:
    """What the colours mean, and the height of the drawing."""
    rows = [("#333", "Numbers are GB/s in each direction.")]
    if found is not None:
        rings = found.rings
        if found.machines > 1:
            rows.append(("#333", f"One of {found.machines} such machines."))
        for number, ring in enumerate(rings.rings):
            colour = _COLOURS[number] if number < len(_COLOURS) else "#333"
            more = "" if number < len(_COLOURS) else " (not drawn)"
            rows.append((colour, f"ring {number + 1}: {_stops(rings, ring)}, {ring.gigabytes:.4g} GB/s{more}"))
        share = f"{rings.total:.4g} of {float(rings.bound.bus):.4g} GB/s busbw, {rings.share:.1%}"
        rows.append((_RED, f"red: the bottleneck, or one of several alike. Rings have {share}."))
    texts = [
        f'<text x="{_MARGIN}" y="{top + 24 + 16 * number:.0f}" fill="{colour}">{escape(text)}</text>'
        for number, (colour, text) in enumerate(rows)
    ]
    return texts, top + 24 + 16 * len(rows) + 8
