"""Direct between nodes, memory within: one fold per node crosses the network, one message per pair of nodes and rail.

all_reduce: piece (rail, owner node); every node folds its inputs and sends the partial value to the owner, which folds
over the nodes (raw values first where nodes of one rank meet larger ones, else in node order) and sends the result
back. all_gather and reduce_scatter send each block straight to, or fold it straight at, the ranks that need it.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Nodes, Source, fold, messages, others, out, own, read, receive
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Peer, Schedule, Spec, Step

RailFn = Callable[[Nodes, int, int], list[Step]]


def _by_node(nodes: Nodes, rail: int, rank: int) -> list[Source]:
    sources: list[Source] = []
    for node, members in enumerate(nodes.members):
        if node == nodes.node_of[rank]:
            sources += own(rank, members)
        else:
            sources.append((Peer(nodes.runner(rail, node)), nodes.partial(node)))
    return sources


def _all_reduce(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    if nodes.runner(rail, node) != rank:
        return []
    members = nodes.members[node]
    local = others(rank, members)
    base = rail * count
    steps: list[Step] = []
    for s in range(1, count):
        owner = (node + s) % count
        steps += fold(rank, base + owner, own(rank, members), send=messages([nodes.runner(rail, owner)]))
    send = local + messages(nodes.runner(rail, node + s) for s in range(1, count))
    steps += fold(rank, base + node, _by_node(nodes, rail, rank), out(base + node), send, final=True)
    for s in range(1, count):
        owner = (node - s) % count
        steps.append(receive(nodes.runner(rail, owner), base + owner, local))
    return steps


def _all_gather(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    index, piece = rail % nodes.width, rail // nodes.width
    if nodes.runner(index, node) != rank:
        return []
    local = others(rank, nodes.members[node])
    steps: list[Step] = []
    if index < len(nodes.members[node]):
        send = local + messages(nodes.runner(index, node + s) for s in range(1, count))
        steps.append(read(rank, rank, piece, rank * nodes.spec.channels + piece, send))
    for s in range(1, count):
        origin = nodes.members[(node - s) % count]
        if index < len(origin):
            steps.append(receive(origin[index], origin[index] * nodes.spec.channels + piece, local))
    return steps


def _reduce_scatter(nodes: Nodes, rail: int, rank: int) -> list[Step]:
    node, count = nodes.node_of[rank], nodes.count
    index, piece = rail % nodes.width, rail // nodes.width
    if nodes.runner(index, node) != rank:
        return []
    members = nodes.members[node]
    steps: list[Step] = []
    for s in range(1, count):
        target = nodes.members[(node + s) % count]
        if index < len(target):
            chunk = target[index] * nodes.spec.channels + piece
            steps += fold(rank, chunk, own(rank, members), send=messages([target[index]]))
    if index < len(members):
        steps += fold(rank, rank * nodes.spec.channels + piece, _by_node(nodes, index, rank), out(piece), final=True)
    return steps


_RAILS: dict[str, RailFn] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}


def build_hier(spec: Spec) -> Schedule:
    """One lane per rail. With one node: direct."""
    nodes = Nodes.of(spec)
    if nodes.count == 1:
        return direct.build(spec)
    rails = nodes.width * spec.channels
    pieces = rails * nodes.count if spec.collective == "all_reduce" else spec.channels
    rail_fn = _RAILS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        return [rail_fn(nodes, rail, rank) for rail in range(rails)]

    return Schedule(spec, pieces, rails, 0 if spec.collective == "all_gather" else 1, lanes)


ALGORITHMS = (
    Algorithm(
        name="hier_direct",
        summary="memory within nodes, every pair of nodes",
        collectives=frozenset(_RAILS),
        build=build_hier,
        shape=direct.shape,
        preference=7,
        memory=True,
        hierarchical=True,
    ),
)
