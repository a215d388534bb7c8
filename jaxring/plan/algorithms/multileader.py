"""Multi-leader: an all-to-all that sends one message from each memory domain to each other one.

Ranks of one domain address each other's memory. All blocks that a domain's ranks have for those of another domain leave
as one message. One rank of the domain, the leader for this pair of domains, gathers it, and one of the other domain
spreads it over the results of all its ranks; the pairs are dealt to the ranks in turn. With domains of w ranks these
are a w-th of PXN's messages, and a w*w-th of direct's. This pays where messages are small, and where a domain's ranks
share one way out. All domains must have the same number of ranks, 11 at most, and these must be consecutive. Source: K.
Kandalla et al., "Designing multi-leader-based Allgather algorithms for multi-core clusters", 2009, from all-gathers.
"""

from __future__ import annotations

import dataclasses
import math

from jaxring.plan import cost
from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Domains, inp, others, out, read
from jaxring.plan.algorithms.pxn import regular, shared_bytes
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step

# Chunks of a message, so that an element of each, 16 bytes at most, fits in half of the smallest slot.
_MOST_CHUNKS = 128


def differs(placement: tuple[int, ...]) -> bool:
    """Whether domains are alike and have several ranks, but not too many; otherwise it is direct."""
    return 1 < regular(placement) <= math.isqrt(_MOST_CHUNKS)


def build(spec: Spec) -> Schedule:
    """One lane per channel. Where it does not differ from direct, or there is one domain: direct."""
    width = regular(spec.placement)
    if not differs(spec.placement) or width == spec.nranks:
        return direct.build(spec)
    domains = Domains.of(spec)

    def lane(rank: int, piece: int) -> list[Step]:
        domain, index = domains.domain_of[rank], rank % width
        members = domains.members[domain]
        mine = [s for s in range(1, domains.count) if (s - 1 + piece) % width == index]
        sources = tuple(Peer(member, memory=member != rank) for member in members)
        steps = []
        for s in mine:
            target = domains.members[(domain + s) % domains.count]
            first = inp(target[0] * spec.channels + piece)
            steps.append(Step(Kind.GATHER, first, recv=sources, send=(Peer(target[index]),), parts=width))
        # Local copies fill the time until the first messages arrive.
        steps += [read(rank, m, rank * spec.channels + piece, m * spec.channels + piece) for m in members]
        for s in mine:
            origin = domains.members[(domain - s) % domains.count]
            into = out(origin[0] * spec.channels + piece)
            steps.append(Step(Kind.SPREAD, None, into, (Peer(origin[index]),), others(rank, members), parts=width))
        return steps

    def lanes(rank: int) -> list[list[Step]]:
        return [lane(rank, piece) for piece in range(spec.channels)]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes, width * width)


def shape(call: cost.Call) -> cost.Shape:
    """PXN with fewer messages. A rank that is the leader of more pairs copies more than the others."""
    others, width = call.topology.domains - 1, call.topology.width
    messages = -(-others // width)
    copied = shared_bytes(call) * messages * width // others
    return dataclasses.replace(direct.shape(call), messages=messages, memory_bytes=copied)


ALGORITHMS = (
    Algorithm(
        name="multileader",
        summary="a message per pair of domains, gathered and spread by memory",
        collectives=frozenset({"all_to_all"}),
        build=build,
        shape=shape,
        preference=9,
        memory=True,
        engines=frozenset({"CPU"}),
        unasked=frozenset({"CPU"}),
        differs=differs,
    ),
)
