"""Small networks with round numbers, so that sums of times are exact in floating point."""

from __future__ import annotations

import dataclasses

from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Schedule, Spec
from jaxring.simulate.history import Record
from jaxring.simulate.links.network import Network
from jaxring.simulate.model import Model
from jaxring.simulate.outcome import Played
from jaxring.simulate.play import play
from jaxring.simulate.program import compile_lanes
from jaxring.simulate.tile_sizes import cut
from jaxring.topology.fabric import Fabric, Link, Vertex, VertexKind

# 0.512 GB/s: 512 bytes a microsecond.
SPEED, LATENCY = 0.512, 2.5


def mesh(ranks: int, speed: float = SPEED, latency: float = LATENCY) -> Network:
    """Each rank has a link to each other one."""
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    vertices = tuple(Vertex(f"r{i}", VertexKind.RANK, i) for i in range(ranks))
    return Network(Fabric(vertices, tuple(Link(a, b, speed, latency, "net") for a, b in pairs)))


def star(ranks: int, speed: float = SPEED, latency: float = LATENCY / 2) -> Network:
    """All ranks around one switch."""
    vertices = (*(Vertex(f"r{i}", VertexKind.RANK, i) for i in range(ranks)), Vertex("s", VertexKind.SWITCH, -1))
    links = [Link(*ends, speed, latency, "net") for i in range(ranks) for ends in ((i, ranks), (ranks, i))]
    return Network(Fabric(vertices, tuple(links)))


def run(
    schedule: Schedule | Spec, nbytes: int, network: Network, model: Model, recorded: bool = False, times: int = 1
) -> tuple[Played, Record | None]:
    """Plays all ranks of an int32 collective, made ``times`` times."""
    if isinstance(schedule, Spec):
        schedule = build(schedule)
    sizes = dataclasses.replace(cut(schedule, nbytes, "int32", model.tile_bytes), times=times)
    program = compile_lanes(schedule, sizes)
    record = Record(program) if recorded else None
    return play(program, network, model, record), record
