"""Ring: every piece travels from node to node; one node's message to the next carries what it got plus its own.

all_reduce moves 2(P-1)/P of the buffer per node (reduce-scatter, then all-gather; Patarasuk and Yuan 2009),
all_gather and reduce_scatter (P-1)/P; broadcast and reduce are chains that are pipelined by the engine's tiles.

``ring`` takes each rank for a node. ``hier_ring`` rings over the real nodes, once per rail: a rail's rank folds its
node's inputs out of their memory as part of the ring step and writes results into all of its node's outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxring.plan import cost
from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Nodes, fold, messages, others, out, own, read, receive, zero
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Peer, Schedule, Spec, Step

RailFn = Callable[[Nodes, int, int], list[Step]]


def _all_reduce(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    if nodes.runner(rail, node) != rank:
        return []
    before = nodes.runner(rail, node - 1)
    after = messages([nodes.runner(rail, node + 1)])
    members = nodes.members[node]
    local = others(rank, members)
    steps: list[Step] = []
    for s in range(count):
        piece = rail * count + (node - s) % count
        sources = own(rank, members)
        if s:
            sources.insert(0, (Peer(before), s > 1 or nodes.partial(node - 1)))
        if s < count - 1:
            steps += fold(rank, piece, sources, send=after)
        else:
            steps += fold(rank, piece, sources, out(piece), local + after, final=True)
    for s in range(count, 2 * count - 1):
        last = s == 2 * count - 2
        steps.append(receive(before, rail * count + (node - s) % count, local if last else local + after))
    return steps


def _block_rail(nodes: Nodes, rail: int) -> tuple[int, int]:
    """(local index, piece) of the blocks that ``rail`` carries: those of each node's member with that index.

    Such a rail is run by that very member, which is where a reduced block has to end up.
    """
    return rail % nodes.width, rail // nodes.width


def _all_gather(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    index, piece = _block_rail(nodes, rail)
    if nodes.runner(index, node) != rank:
        return []
    before = nodes.runner(index, node - 1)
    after = messages([nodes.runner(index, node + 1)])
    local = others(rank, nodes.members[node])
    steps: list[Step] = []
    for s in range(count):
        origin = nodes.members[(node - s) % count]
        if index >= len(origin):
            continue  # a smaller node has no such member
        send = local if s == count - 1 else local + after
        chunk = origin[index] * nodes.spec.channels + piece
        steps.append(receive(before, chunk, send) if s else read(rank, rank, piece, chunk, send))
    return steps


def _reduce_scatter(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    index, piece = _block_rail(nodes, rail)
    if nodes.runner(index, node) != rank:
        return []
    before = nodes.runner(index, node - 1)
    after = messages([nodes.runner(index, node + 1)])
    members = nodes.members[node]
    steps: list[Step] = []
    for s in range(count):
        target = nodes.members[(node - 1 - s) % count]
        if index >= len(target):
            continue
        sources = own(rank, members)
        if s:
            sources.insert(0, (Peer(before), s > 1 or nodes.partial(node - 1)))
        chunk = target[index] * nodes.spec.channels + piece
        if s < count - 1:
            steps += fold(rank, chunk, sources, send=after)
        else:
            steps += fold(rank, chunk, sources, out(piece), final=True)
    return steps


def _broadcast(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    if nodes.runner(rail, node) != rank:
        return []
    place = (node - nodes.node_of[nodes.spec.root]) % count  # in the chain
    send = others(rank, nodes.members[node])
    if place < count - 1:
        send += messages([nodes.runner(rail, node + 1)])
    if place:
        return [receive(nodes.runner(rail, node - 1), rail, send)]
    return [read(rank, nodes.spec.root, rail, rail, send)]


def _reduce(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    end = nodes.node_of[nodes.spec.root]
    place = (node - end - 1) % count  # in the chain, which ends at the root's node
    # Only the root itself can store what nobody else keeps, so it runs all rails of its node.
    runner = nodes.spec.root if node == end else nodes.runner(rail, node)
    steps: list[Step] = []
    if runner == rank:
        sources = own(rank, nodes.members[node])
        if place:
            sources.insert(0, (Peer(nodes.runner(rail, node - 1)), place > 1 or nodes.partial(node - 1)))
        if node == end:
            return fold(rank, rail, sources, out(rail), final=True)
        after = nodes.spec.root if place == count - 2 else nodes.runner(rail, node + 1)
        steps = fold(rank, rail, sources, send=messages([after]))
    return [*steps, zero(rail)]


_RAILS: dict[str, RailFn] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
}


def _build(spec: Spec, nodes: Nodes) -> Schedule:
    if nodes.count == 1:
        return direct.build(spec)
    rails = nodes.width * spec.channels
    pieces = rails
    if spec.collective == "all_reduce":
        pieces = rails * nodes.count
    elif spec.collective in ("all_gather", "reduce_scatter"):
        pieces = spec.channels
    rail_fn = _RAILS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        return [rail_fn(nodes, rail, rank) for rail in range(rails)]

    return Schedule(spec, pieces, rails, 0, lanes)


def build(spec: Spec) -> Schedule:
    """Rings over all ranks by messages, one per channel."""
    return _build(spec, Nodes.flat(spec))


def build_hier(spec: Spec) -> Schedule:
    """Rings over the nodes, one per rail; within a node by memory. With one node: direct."""
    return _build(spec, Nodes.of(spec))


def phase(call: cost.Call, phase: str) -> cost.Phase:
    """Once around; a chain where the collective is rooted."""
    steps = call.count - 1
    wire = call.total if call.rooted else call.total * steps // call.count
    return cost.Phase(steps, steps, wire * call.widened(phase))


def shape(call: cost.Call) -> cost.Shape:
    """The cost between memory domains."""
    return call.sum_phases(phase)


RING = Algorithm(
    name="ring",
    summary="least bytes per link, n-1 steps per phase",
    collectives=frozenset(_RAILS),
    build=build,
    shape=shape,
    preference=2,
)
ALGORITHMS = (
    RING,
    dataclasses.replace(
        RING,
        name="hier_ring",
        summary="memory within nodes, ring between them",
        build=build_hier,
        preference=5,
        memory=True,
        hierarchical=True,
    ),
)
