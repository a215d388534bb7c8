"""Double binary tree (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan,
Parallel Computing 2009). Depth log2(P). Each half of the buffer has a tree of its own, in which the inner vertices of
the other tree are leaves, so every vertex sends and receives about one buffer in each direction.

The vertices of ``tree`` are ranks. Those of ``hier_tree`` are memory domains, with two trees per rail: the tree's steps
also fold the domain's inputs and write its outputs through shared memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxring.plan import cost
from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Domains, fold, messages, others, out, own, read, receive, zero
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.collectives import PhaseKind
from jaxring.plan.schedule import Peer, Schedule, Spec, Step

RailFn = Callable[[Domains, int, int], list[Step]]


def in_order(label: int, count: int) -> tuple[int, list[int]]:
    """(parent or 0, children) of ``label`` in the in-order binary tree over 1..count, whose odd labels are leaves."""
    bit = label & -label
    parent = (label - bit) | (bit << 1)
    if parent > count:
        parent = label - bit
    children = []
    if bit > 1:
        children.append(label - bit // 2)
        step = bit // 2
        while step and label + step > count:  # the right subtree may be cut off at count
            step //= 2
        if step:
            children.append(label + step)
    return parent, children


def tree(label: int, count: int, second: bool) -> tuple[int, list[int]]:
    """(parent or 0, children) in the first tree, or in the second: mirrored for even counts, shifted for odd ones.

    Both flip the parity of labels, hence leaves become inner vertices (for odd counts one label is a leaf twice).
    """
    if not second:
        return in_order(label, count)

    def back(there: int) -> int:
        return count + 1 - there if count % 2 == 0 else (there - 2) % count + 1

    parent, children = in_order(count + 1 - label if count % 2 == 0 else label % count + 1, count)
    return (back(parent) if parent else 0), [back(child) for child in children]


def root_of(count: int, second: bool) -> int:
    """The label without a parent."""
    top = 1 << (count.bit_length() - 1)
    if not second:
        return top
    return count + 1 - top if count % 2 == 0 else (top - 2) % count + 1


def _second(domains: Domains, rail: int) -> bool:
    # Every rank with a rail in the first tree has one in the second.
    return rail // domains.width % 2 == 1


def _partial(domains: Domains, domain: int, label: int, count: int, second: bool) -> bool:
    """Whether what ``domain`` sends up is a fold: unless it is a leaf of one rank."""
    return domains.partial(domain) or bool(tree(label, count, second)[1])


def _all_reduce(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count, second = domains.domain_of[rank], domains.count, _second(domains, rail)
    if domains.runner(rail, domain) != rank:
        return []
    parent, children = tree(domain + 1, count, second)
    sources = own(rank, domains.members[domain])
    sources += [
        (Peer(domains.runner(rail, child - 1)), _partial(domains, child - 1, child, count, second))
        for child in children
    ]
    down = others(rank, domains.members[domain]) + messages(domains.runner(rail, child - 1) for child in children)
    if not parent:
        return fold(rank, rail, sources, out(rail), down, final=True)
    above = domains.runner(rail, parent - 1)
    return [*fold(rank, rail, sources, send=messages([above])), receive(above, rail, down)]


def _broadcast(domains: Domains, rail: int, rank: int) -> list[Step]:
    # The root's domain is no part of the trees but feeds both; labels count from it.
    domain, start, count, second = (
        domains.domain_of[rank],
        domains.domain_of[domains.spec.root],
        domains.count - 1,
        _second(domains, rail),
    )
    if domains.runner(rail, domain) != rank:
        return []
    label = (domain - start) % domains.count
    local = others(rank, domains.members[domain])
    if not label:
        first = domains.runner(rail, start + root_of(count, second))
        return [read(rank, domains.spec.root, rail, rail, local + messages([first]))]
    parent, children = tree(label, count, second)
    below = messages(domains.runner(rail, start + child) for child in children)
    return [receive(domains.runner(rail, start + parent), rail, local + below)]


def _reduce(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, end, count, second = (
        domains.domain_of[rank],
        domains.domain_of[domains.spec.root],
        domains.count - 1,
        _second(domains, rail),
    )
    label = (domain - end) % domains.count
    parent, children = tree(label, count, second) if label else (0, [root_of(count, second)])
    # Only the root can store the result, because no other rank keeps it. So it runs all rails of its domain.
    steps: list[Step] = []
    if rank == (domains.runner(rail, domain) if label else domains.spec.root):
        sources = own(rank, domains.members[domain])
        for child in children:
            peer = Peer(domains.runner(rail, end + child))
            sources.append((peer, _partial(domains, end + child, child, count, second)))
        if not label:
            return fold(rank, rail, sources, out(rail), final=True)
        above = domains.runner(rail, end + parent) if parent else domains.spec.root
        steps = fold(rank, rail, sources, send=messages([above]))
    return [*steps, zero(rail)]


_RAILS: dict[str, RailFn] = {"all_reduce": _all_reduce, "broadcast": _broadcast, "reduce": _reduce}


def _build(spec: Spec, domains: Domains) -> Schedule:
    if domains.count == 1:
        return direct.build(spec)
    rails = 2 * domains.width * spec.channels
    rail_fn = _RAILS[spec.collective]
    scratch = 0 if spec.collective == "broadcast" else 1

    def lanes(rank: int) -> list[list[Step]]:
        return [rail_fn(domains, rail, rank) for rail in range(rails)]

    return Schedule(spec, rails, rails, scratch, lanes)


def build(spec: Spec) -> Schedule:
    """Two trees over all ranks per channel, by messages."""
    return _build(spec, Domains.flat(spec))


def build_hier(spec: Spec) -> Schedule:
    """Two trees over the domains per rail; within a domain by memory. With one domain: direct."""
    return _build(spec, Domains.of(spec))


def phase(call: cost.Call, phase: PhaseKind) -> cost.Phase:
    """Down or up an inner vertex of one tree and a leaf of the other."""
    return cost.Phase(cost.log2(call.count + 1), 3, call.total * call.widened(phase))


def shape(call: cost.Call) -> cost.Shape:
    """The cost between memory domains."""
    once = call.sum_phases(phase)
    if call.collective != "all_reduce":
        return once
    # A lane's next tile goes up only when this one has come down.
    tiles = max(1, -(-call.total // (2 * call.rails * call.constants.tile_bytes)))
    return dataclasses.replace(once, hops=once.hops * tiles)


TREE = Algorithm(
    name="tree",
    summary="double binary tree, log2(n) deep",
    collectives=frozenset(_RAILS),
    build=build,
    shape=shape,
    preference=3,
)
ALGORITHMS = (
    TREE,
    dataclasses.replace(
        TREE,
        name="hier_tree",
        summary="memory within domains, two trees between them",
        build=build_hier,
        preference=6,
        memory=True,
        hierarchical=True,
    ),
)
