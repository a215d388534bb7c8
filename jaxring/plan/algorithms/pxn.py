"""PXN: an all-to-all that sends one message from a host to each rank elsewhere, and none across rails.

Ranks of one node address each other's memory. What a node's ranks have for a rank of another node is gathered by the
rank of the same place in the node, the rank on the receiver's rail, and leaves as one message; the receiver spreads it
into its blocks. Each rank so sends nodes - 1 messages of as many chunks as a node has ranks, where direct sends as many
times more messages of one chunk: it pays where messages are small. Nodes must be alike: as many ranks each, in a row.
"""

from __future__ import annotations

import dataclasses

from jaxring.plan import cost
from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Nodes, inp, out, read
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step


def regular(placement: tuple[int, ...]) -> int:
    """Ranks of each node where all nodes have as many, in a row; otherwise 0."""
    width = placement.count(placement[0])
    nodes = [placement[first : first + width] for first in range(0, len(placement), width)]
    alike = all(node == (node[0],) * width for node in nodes)
    return width if alike and len({node[0] for node in nodes}) == len(nodes) else 0


def build(spec: Spec) -> Schedule:
    """One lane per channel. Where nodes are not alike, or have one rank each, or there is but one: direct."""
    width = regular(spec.placement)
    if width in (0, 1, spec.nranks):
        return direct.build(spec)
    nodes = Nodes.of(spec)

    def lane(rank: int, piece: int) -> list[Step]:
        node, rail = nodes.node_of[rank], rank % width
        members = nodes.members[node]
        sources = tuple(Peer(member, memory=member != rank) for member in members)
        steps = []
        for s in range(1, nodes.count):
            target = nodes.members[(node + s) % nodes.count][rail]
            steps.append(Step(Kind.GATHER, inp(target * spec.channels + piece), recv=sources, send=(Peer(target),)))
        # Local copies fill the time until the first messages arrive.
        steps += [read(rank, m, rank * spec.channels + piece, m * spec.channels + piece) for m in members]
        for s in range(1, nodes.count):
            origin = nodes.members[(node - s) % nodes.count]
            into = out(origin[0] * spec.channels + piece)
            steps.append(Step(Kind.SPREAD, None, into, (Peer(origin[rail]),), parts=width))
        return steps

    def lanes(rank: int) -> list[list[Step]]:
        return [lane(rank, piece) for piece in range(spec.channels)]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes, width)


def shape(call: cost.Call) -> cost.Shape:
    """Direct with fewer messages, of which each rank reads all but its own share in other ranks' memory."""
    shared = 4 * call.total if call.topology.width > 1 else 0
    return dataclasses.replace(direct.shape(call), messages=call.topology.nodes - 1, memory_bytes=shared)


def differs(placement: tuple[int, ...]) -> bool:
    """Whether nodes are alike and have several ranks; otherwise it is direct."""
    return regular(placement) > 1


ALGORITHMS = (
    Algorithm(
        name="pxn",
        summary="a message per node and rail, gathered by memory",
        collectives=frozenset({"all_to_all"}),
        build=build,
        shape=shape,
        preference=8,
        memory=True,
        # The kernels do not gather messages.
        engines=frozenset({"CPU"}),
        unasked=frozenset({"CPU"}),
        differs=differs,
    ),
)
