"""Ring: every piece travels from domain to domain; one domain's message to the next carries what it got plus its own.

all_reduce moves 2(P-1)/P of the buffer per domain (reduce-scatter, then all-gather; Patarasuk and Yuan 2009),
all_gather and reduce_scatter (P-1)/P; broadcast and reduce are chains that are pipelined by the engine's tiles.

``ring`` treats each rank as a domain of its own. ``hier_ring`` has a ring over the memory domains for each rail: as
part of a ring step, the rail's rank reads and folds the inputs of its domain and writes results to all its outputs.

Both visit the domains in the spec's order, for instance one that `jaxring tune --ranks` has measured.
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


def _all_reduce(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    if domains.runner(rail, domain) != rank:
        return []
    before = domains.runner(rail, domain - 1)
    after = messages([domains.runner(rail, domain + 1)])
    members = domains.members[domain]
    local = others(rank, members)
    steps: list[Step] = []
    for s in range(count):
        piece = rail * count + (domain - s) % count
        sources = own(rank, members)
        if s:
            sources.insert(0, (Peer(before), s > 1 or domains.partial(domain - 1)))
        if s < count - 1:
            steps += fold(rank, piece, sources, send=after)
        else:
            steps += fold(rank, piece, sources, out(piece), local + after, final=True)
    for s in range(count, 2 * count - 1):
        last = s == 2 * count - 2
        steps.append(receive(before, rail * count + (domain - s) % count, local if last else local + after))
    return steps


def _block_rail(domains: Domains, rail: int) -> tuple[int, int]:
    """(local index, piece) of the blocks that ``rail`` carries: those of each domain's member with that index.

    Such a rail is run by that very member, which is where a reduced block has to end up.
    """
    return rail % domains.width, rail // domains.width


def _all_gather(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    index, piece = _block_rail(domains, rail)
    if domains.runner(index, domain) != rank:
        return []
    before = domains.runner(index, domain - 1)
    after = messages([domains.runner(index, domain + 1)])
    local = others(rank, domains.members[domain])
    steps: list[Step] = []
    for s in range(count):
        origin = domains.members[(domain - s) % count]
        if index >= len(origin):
            continue  # a smaller domain has no such member
        send = local if s == count - 1 else local + after
        chunk = origin[index] * domains.spec.channels + piece
        steps.append(receive(before, chunk, send) if s else read(rank, rank, piece, chunk, send))
    return steps


def _reduce_scatter(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    index, piece = _block_rail(domains, rail)
    if domains.runner(index, domain) != rank:
        return []
    before = domains.runner(index, domain - 1)
    after = messages([domains.runner(index, domain + 1)])
    members = domains.members[domain]
    steps: list[Step] = []
    for s in range(count):
        target = domains.members[(domain - 1 - s) % count]
        if index >= len(target):
            continue
        sources = own(rank, members)
        if s:
            sources.insert(0, (Peer(before), s > 1 or domains.partial(domain - 1)))
        chunk = target[index] * domains.spec.channels + piece
        if s < count - 1:
            steps += fold(rank, chunk, sources, send=after)
        else:
            steps += fold(rank, chunk, sources, out(piece), final=True)
    return steps


def _broadcast(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    if domains.runner(rail, domain) != rank:
        return []
    place = (domain - domains.domain_of[domains.spec.root]) % count  # in the chain
    send = others(rank, domains.members[domain])
    if place < count - 1:
        send += messages([domains.runner(rail, domain + 1)])
    if place:
        return [receive(domains.runner(rail, domain - 1), rail, send)]
    return [read(rank, domains.spec.root, rail, rail, send)]


def _reduce(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    end = domains.domain_of[domains.spec.root]
    place = (domain - end - 1) % count  # in the chain, which ends at the root's domain
    # Only the root can store the result, because no other rank keeps it. So it runs all rails of its domain.
    runner = domains.spec.root if domain == end else domains.runner(rail, domain)
    steps: list[Step] = []
    if runner == rank:
        sources = own(rank, domains.members[domain])
        if place:
            sources.insert(0, (Peer(domains.runner(rail, domain - 1)), place > 1 or domains.partial(domain - 1)))
        if domain == end:
            return fold(rank, rail, sources, out(rail), final=True)
        after = domains.spec.root if place == count - 2 else domains.runner(rail, domain + 1)
        steps = fold(rank, rail, sources, send=messages([after]))
    return [*steps, zero(rail)]


_RAILS: dict[str, RailFn] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
}


def _build(spec: Spec, domains: Domains) -> Schedule:
    if domains.count == 1:
        return direct.build(spec)
    rails = domains.width * spec.channels
    pieces = rails
    if spec.collective == "all_reduce":
        pieces = rails * domains.count
    elif spec.collective in ("all_gather", "reduce_scatter"):
        pieces = spec.channels
    rail_fn = _RAILS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        return [rail_fn(domains, rail, rank) for rail in range(rails)]

    return Schedule(spec, pieces, rails, 0, lanes)


def build(spec: Spec) -> Schedule:
    """Rings over all ranks by messages, one per channel."""
    return _build(spec, Domains.flat(spec).in_order())


def build_hier(spec: Spec) -> Schedule:
    """Rings over the domains, one per rail; within a domain by memory. With one domain: direct."""
    return _build(spec, Domains.of(spec).in_order())


def phase(call: cost.Call, phase: PhaseKind) -> cost.Phase:
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
    ordered=True,
)
ALGORITHMS = (
    RING,
    dataclasses.replace(
        RING,
        name="hier_ring",
        summary="memory within domains, ring between them",
        build=build_hier,
        preference=5,
        memory=True,
        hierarchical=True,
    ),
)
