"""Random fabrics from a seed."""

from __future__ import annotations

import random

from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind


def random_fabric(seed: int, ranks: int, switches: int, both_ways: bool) -> Fabric:
    """A connected fabric of a few GB/s a link. Links have one speed in both directions, or each its own."""
    chance = random.Random(seed)
    vertices = [Vertex(f"GPU{i}", VertexKind.RANK) for i in range(ranks)]
    vertices += [Vertex(f"switch{i}", VertexKind.PCI) for i in range(switches)]
    count = len(vertices)
    pairs = {(chance.randrange(i), i) for i in range(1, count)}
    pairs |= {tuple(sorted(chance.sample(range(count), 2))) for _ in range(chance.randrange(2 * count))}
    links = []
    for one, other in sorted(pairs):
        speed = chance.choice((1.0, 2.0, 2.5, 4.0, 10.0))
        links.append(Link(one, other, speed, 1.0, "pcie"))
        links.append(Link(other, one, speed if both_ways else chance.choice((1.0, 3.0, 4.5)), 1.0, "pcie"))
    return Fabric(tuple(vertices), tuple(links))
