"""Direct messages between memory domains, shared memory within: one message per pair of domains and rail.

all_reduce: there is one piece per rail and owner domain. Every domain folds its inputs and sends the partial value to
the owner, which folds over the domains and sends the result back. It folds in domain order; where domains of one rank
meet larger ones, raw values come first. all_gather sends each block straight to the ranks that need it, reduce_scatter
folds it there.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Domains, Source, fold, messages, others, out, own, read, receive
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Peer, Schedule, Spec, Step

RailFn = Callable[[Domains, int, int], list[Step]]


def _by_domain(domains: Domains, rail: int, rank: int) -> list[Source]:
    sources: list[Source] = []
    for domain, members in enumerate(domains.members):
        if domain == domains.domain_of[rank]:
            sources += own(rank, members)
        else:
            sources.append((Peer(domains.runner(rail, domain)), domains.partial(domain)))
    return sources


def _all_reduce(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    if domains.runner(rail, domain) != rank:
        return []
    members = domains.members[domain]
    local = others(rank, members)
    base = rail * count
    steps: list[Step] = []
    for s in range(1, count):
        owner = (domain + s) % count
        steps += fold(rank, base + owner, own(rank, members), send=messages([domains.runner(rail, owner)]))
    send = local + messages(domains.runner(rail, domain + s) for s in range(1, count))
    steps += fold(rank, base + domain, _by_domain(domains, rail, rank), out(base + domain), send, final=True)
    for s in range(1, count):
        owner = (domain - s) % count
        steps.append(receive(domains.runner(rail, owner), base + owner, local))
    return steps


def _all_gather(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    index, piece = rail % domains.width, rail // domains.width
    if domains.runner(index, domain) != rank:
        return []
    local = others(rank, domains.members[domain])
    steps: list[Step] = []
    if index < len(domains.members[domain]):
        send = local + messages(domains.runner(index, domain + s) for s in range(1, count))
        steps.append(read(rank, rank, piece, rank * domains.spec.channels + piece, send))
    for s in range(1, count):
        origin = domains.members[(domain - s) % count]
        if index < len(origin):
            steps.append(receive(origin[index], origin[index] * domains.spec.channels + piece, local))
    return steps


def _reduce_scatter(domains: Domains, rail: int, rank: int) -> list[Step]:
    domain, count = domains.domain_of[rank], domains.count
    index, piece = rail % domains.width, rail // domains.width
    if domains.runner(index, domain) != rank:
        return []
    members = domains.members[domain]
    steps: list[Step] = []
    for s in range(1, count):
        target = domains.members[(domain + s) % count]
        if index < len(target):
            chunk = target[index] * domains.spec.channels + piece
            steps += fold(rank, chunk, own(rank, members), send=messages([target[index]]))
    if index < len(members):
        steps += fold(
            rank, rank * domains.spec.channels + piece, _by_domain(domains, index, rank), out(piece), final=True
        )
    return steps


_RAILS: dict[str, RailFn] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}


def build_hier(spec: Spec) -> Schedule:
    """One lane per rail. With one domain: direct."""
    domains = Domains.of(spec)
    if domains.count == 1:
        return direct.build(spec)
    rails = domains.width * spec.channels
    pieces = rails * domains.count if spec.collective == "all_reduce" else spec.channels
    rail_fn = _RAILS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        return [rail_fn(domains, rail, rank) for rail in range(rails)]

    return Schedule(spec, pieces, rails, 0 if spec.collective == "all_gather" else 1, lanes)


ALGORITHMS = (
    Algorithm(
        name="hier_direct",
        summary="memory within domains, every pair of domains",
        collectives=frozenset(_RAILS),
        build=build_hier,
        shape=direct.shape,
        preference=7,
        memory=True,
        hierarchical=True,
    ),
)
