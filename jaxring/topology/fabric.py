"""A fabric: devices and switches, and the directed links between them with their speeds.

One record serves the search for rings and trees inside a machine, the bound on what the machine can do, and the
simulator's clusters of many machines.
"""

from __future__ import annotations

import dataclasses
import enum
import functools


class VertexKind(enum.Enum):
    """RANK computes (a GPU, or a CPU rank). All others only pass data on."""

    RANK = "rank"
    NIC = "nic"
    PCI = "pci"
    CPU = "cpu"
    NVSWITCH = "nvswitch"
    SWITCH = "switch"  # of a network between machines


@dataclasses.dataclass(frozen=True, slots=True)
class Vertex:
    """A device or switch. ``name`` is unique in its fabric; ``machine`` is the number of the machine it lies in, -1
    for a switch between machines."""

    name: str
    kind: VertexKind
    machine: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection, from vertex ``source`` to vertex ``target`` (indices into the fabric's vertices).

    ``gigabytes``: 1e9 bytes a second; ``latency``: microseconds until the first byte arrives; ``kind``: what carries
    it ("nvlink", "pcie", "c2c", "cpu", "net").
    """

    source: int
    target: int
    gigabytes: float
    latency: float
    kind: str

    def __post_init__(self) -> None:
        if self.source == self.target or self.source < 0 or self.target < 0:
            raise ValueError(f"a link joins two vertices, not {self.source} and {self.target}")
        if not self.gigabytes > 0 or not self.latency >= 0:
            raise ValueError(f"a link has a speed above 0 and no negative latency: {self.gigabytes}, {self.latency}")


@dataclasses.dataclass(frozen=True)
class Fabric:
    """All vertices and links. Raises ValueError for a link to a vertex that is not there, or a name used twice."""

    vertices: tuple[Vertex, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        names = {vertex.name for vertex in self.vertices}
        if len(names) != len(self.vertices):
            raise ValueError("two vertices of a fabric have one name")
        for link in self.links:
            if max(link.source, link.target) >= len(self.vertices):
                raise ValueError(f"a link names vertex {max(link.source, link.target)} of {len(self.vertices)}")

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """The vertices that compute, in their order: position r is rank r."""
        return tuple(i for i, vertex in enumerate(self.vertices) if vertex.kind is VertexKind.RANK)

    @functools.cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """For each vertex the indices of the links that leave it."""
        found: list[list[int]] = [[] for _ in self.vertices]
        for index, link in enumerate(self.links):
            found[link.source].append(index)
        return tuple(tuple(each) for each in found)
