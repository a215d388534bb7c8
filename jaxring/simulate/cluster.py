"""Clusters of like hosts: what a host is made of, and the switches between hosts.

A host has ranks that reach each other through one switch (NVSwitch, or the memory of a machine of CPUs), and network
ports that the ranks share in turn. A block of hosts shares its first switches: one for each port of a host (rails), or
one for all. A spine joins the blocks; it is one vertex, so balance among its switches is taken as perfect.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.simulate.links.network import Network
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxring.simulate.model import Model
    from jaxring.simulate.symmetry import Symmetry

Route = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts and what joins them. Speeds in GB/s (1e9 bytes a second) for one direction, latencies in us.

    ``ranks``, ``ports``: of a host. ``channels``: of a schedule, unless
    the caller says how many. ``inside``: speed of a rank's links to the switch in its host, ``inside_us``:
    latency from rank to rank in a host. ``port``: speed of a network port, ``attach``: of what joins a rank with its
    port (PCIe), ``across_us``: latency from rank to rank through one switch, ``switch_us``: through each further one.
    ``leaf``: hosts that share their first switches. ``rails``: whether there is a first switch for each port of a host.
    ``oversubscription``: speed of all ports of a first switch over that of its links to the spine.
    ``multicast``: the share of ``inside`` that switches reach that reduce and copy, 0 where they cannot.
    ``multicast_us``: until a rank's first step by such switches. ``multicast_channels``: how many chunks of a rank are
    on their way through them at once.
    ``domain``: ranks of a host that address each other's memory. ``models``: what messages cost, by protocol.
    ``sources``: where each number comes from.
    """

    name: str
    title: str
    ranks: int
    ports: int
    channels: int
    domain: int
    inside: float
    inside_us: Mapping[str, float]
    port: float
    burst: float
    attach: float
    across_us: Mapping[str, float]
    switch_us: float
    leaf: int
    rails: bool
    oversubscription: float
    multicast: float
    multicast_us: float
    multicast_channels: int
    kind: str
    models: Mapping[str, Model]
    sources: Mapping[str, str] = dataclasses.field(repr=False)

    def placement(self, hosts: int) -> tuple[int, ...]:
        """The memory domain of each rank."""
        return tuple(rank // self.domain for rank in range(hosts * self.ranks))

    def machines(self, hosts: int) -> list[int]:
        """The host of each rank."""
        return [rank // self.ranks for rank in range(hosts * self.ranks)]

    def build(self, hosts: int, protocol: str) -> ClusterNetwork:
        """The network of so many hosts, with the latencies of ``protocol``."""
        return ClusterNetwork(self, hosts, protocol)


class ClusterNetwork(Network):
    """The links of a host come one after another, host by host; then those of the first switches to the spine.

    Of a host: for each rank to the switch and back, to its port and back; for each port to its first switch and back.
    """

    def __init__(self, cluster: Cluster, hosts: int, protocol: str) -> None:
        self.cluster, self.hosts = cluster, hosts
        self.blocks = -(-hosts // cluster.leaf)
        self.switches = cluster.ports if cluster.rails else 1  # first switches of a block
        self.of_host = 4 * cluster.ranks + 2 * cluster.ports
        super().__init__(self._fabric(protocol), self._way)
        if cluster.burst:
            first = 4 * cluster.ranks
            leaving = range(first, self.of_host, 2)
            self.bursts = {host * self.of_host + port: cluster.burst for host in range(hosts) for port in leaving}

    def _fabric(self, protocol: str) -> Fabric:
        c, hosts = self.cluster, self.hosts
        gpu = c.kind == "gpu"
        vertices: list[Vertex] = []
        each = c.ranks + c.ports + 1
        for host in range(hosts):
            vertices += (Vertex(f"h{host}r{i}", VertexKind.RANK, host) for i in range(c.ranks))
            vertices += (Vertex(f"h{host}n{i}", VertexKind.NIC, host) for i in range(c.ports))
            vertices.append(Vertex(f"h{host}s", VertexKind.NVSWITCH if gpu else VertexKind.CPU, host))
        first = len(vertices)
        for block in range(self.blocks):
            vertices += (Vertex(f"leaf{block}.{i}", VertexKind.SWITCH, -1) for i in range(self.switches))
        if self.blocks > 1 or self.switches > 1:
            vertices.append(Vertex("spine", VertexKind.SWITCH, -1))
        spine = len(vertices) - 1
        half, port_us = c.inside_us[protocol] / 2, c.across_us[protocol] / 4
        inside, attach = ("nvlink", "pcie") if gpu else ("cpu", "cpu")
        links: list[Link] = []

        def both(a: int, b: int, speed: float, latency: float, kind: str) -> None:
            links.append(Link(a, b, speed, latency, kind))
            links.append(Link(b, a, speed, latency, kind))

        for host in range(hosts):
            base = host * each
            for i in range(c.ranks):
                both(base + i, base + each - 1, c.inside, half, inside)
            for i in range(c.ranks):
                both(base + i, base + c.ranks + i % c.ports, c.attach, port_us, attach)
            for i in range(c.ports):
                leaf = first + host // c.leaf * self.switches + i % self.switches
                both(base + c.ranks + i, leaf, c.port, port_us, "net")
        if spine > first + self.blocks * self.switches - 1:
            for block in range(self.blocks):
                members = min(c.leaf, hosts - block * c.leaf)
                speed = members * c.port * c.ports / self.switches / c.oversubscription
                for i in range(self.switches):
                    both(first + block * self.switches + i, spine, speed, c.switch_us, "net")
        return Fabric(tuple(vertices), tuple(links))

    def _way(self, source: int, target: int) -> Route:
        c = self.cluster
        from_host, i = divmod(source, c.ranks)
        to_host, j = divmod(target, c.ranks)
        start, end = from_host * self.of_host, to_host * self.of_host
        if from_host == to_host:
            return start + 2 * i, end + 2 * j + 1
        ranks, ports = 2 * c.ranks, 4 * c.ranks
        out = start + ranks + 2 * i, start + ports + 2 * (i % c.ports)
        into = end + ports + 2 * (j % c.ports) + 1, end + ranks + 2 * j + 1
        here = from_host // c.leaf * self.switches + i % c.ports % self.switches
        there = to_host // c.leaf * self.switches + j % c.ports % self.switches
        if here == there:
            return (*out, *into)
        up = self.hosts * self.of_host
        return (*out, up + 2 * here, up + 2 * there + 1, *into)

    def image(self, link: int, symmetry: Symmetry) -> tuple[int, int]:
        """The link that stands for ``link`` under a symmetry of the cluster, and how many it stands for."""
        up = self.hosts * self.of_host
        if link < up:
            return link % (symmetry.period * self.of_host), symmetry.order
        if self.blocks == 1:
            return link, 1
        blocks = max(1, symmetry.period // self.cluster.leaf)
        return up + (link - up) % (blocks * 2 * self.switches), self.blocks // blocks


class Folded:
    """A network as the ranks see it that stand for their classes: a link stands for its images, and has for one rank's
    messages the part of its speed that is left beside those of the ranks that it stands for."""

    def __init__(self, network: ClusterNetwork, symmetry: Symmetry) -> None:
        self.network, self.symmetry = network, symmetry
        self.binding, self.bursts = network.binding, network.bursts
        self.speed = list(network.speed)
        up = network.hosts * network.of_host
        for link in range(up, len(self.speed)):
            _, images = network.image(link, symmetry)
            self.speed[link] *= images / symmetry.order

    def route(self, source: int, target: int) -> Route:
        """The links that stand for those from ``source`` to ``target``."""
        return tuple(self.network.image(link, self.symmetry)[0] for link in self.network.route(source, target))

    def latency(self, route: Route) -> float:
        """As `Network.latency`: images have the same."""
        return self.network.latency(route)
