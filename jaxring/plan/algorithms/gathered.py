"""What all-to-alls share that gather the chunks of a memory domain's ranks into one message.

Ranks of one domain address each other's memory, and messages travel between ranks that have the same index in their
domains. All domains must have the same number of ranks, and these must be consecutive.
"""

from __future__ import annotations

from jaxring.plan import cost
from jaxring.plan.algorithms.common import Domains, inp, others, out, read
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step


def regular(placement: tuple[int, ...]) -> int:
    """Ranks of each domain where all domains have as many, in a row; otherwise 0."""
    width = placement.count(placement[0])
    domains = [placement[first : first + width] for first in range(0, len(placement), width)]
    alike = all(domain == (domain[0],) * width for domain in domains)
    return width if alike and len({domain[0] for domain in domains}) == len(domains) else 0


def build(spec: Spec, for_all: bool) -> Schedule:
    """One lane per channel.

    ``for_all``: a message is for all ranks of its domain, and the pairs of domains are dealt to the ranks in turn.
    Otherwise each rank has a message to the rank of its index in each other domain.
    """
    domains, width = Domains.of(spec), regular(spec.placement)
    blocks = width if for_all else 1

    def lane(rank: int, piece: int) -> list[Step]:
        domain, index = domains.domain_of[rank], rank % width
        members = domains.members[domain]
        mine = [s for s in range(1, domains.count) if not for_all or (s - 1 + piece) % width == index]
        sources = tuple(Peer(member, memory=member != rank) for member in members)
        steps = []
        for s in mine:
            target = domains.members[(domain + s) % domains.count]
            first = inp(target[0 if for_all else index] * spec.channels + piece)
            steps.append(Step(Kind.GATHER, first, recv=sources, send=(Peer(target[index]),), parts=blocks))
        # Local copies fill the time until the first messages arrive.
        steps += [read(rank, m, rank * spec.channels + piece, m * spec.channels + piece) for m in members]
        for s in mine:
            origin = domains.members[(domain - s) % domains.count]
            into = out(origin[0] * spec.channels + piece)
            also = others(rank, members) if for_all else ()
            steps.append(Step(Kind.SPREAD, None, into, (Peer(origin[index]),), also, parts=width))
        return steps

    def lanes(rank: int) -> list[list[Step]]:
        return [lane(rank, piece) for piece in range(spec.channels)]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes, width * blocks)


def memory_bytes(call: cost.Call) -> int:
    """Bytes that a rank copies: an eighth more than by direct, which reads its own memory alone.

    Measured between four hosts, and between four processes of a host, of two ranks each, from 16 KiB to 16 MiB.
    """
    return 2 * call.total * 9 // 8 if call.topology.width > 1 else 0
