"""PXN: an all-to-all that sends one message from a host to each rank elsewhere, and none across rails.

Ranks of one domain address each other's memory. The blocks that a domain's ranks have for a rank of another domain are
gathered by the rank that has the receiver's index in the domain, which is the rank on the receiver's rail. They leave
as one message, which the receiver scatters into its blocks. Each rank sends domains - 1 messages, each of as many
chunks as a domain has ranks; direct sends a message per chunk. This pays where messages are small. All domains must
have the same number of ranks, and these must be consecutive.
"""

from __future__ import annotations

import dataclasses

from jaxring.plan import cost
from jaxring.plan.algorithms import direct
from jaxring.plan.algorithms.common import Domains, inp, out, read
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step


def regular(placement: tuple[int, ...]) -> int:
    """Ranks of each domain where all domains have as many, in a row; otherwise 0."""
    width = placement.count(placement[0])
    domains = [placement[first : first + width] for first in range(0, len(placement), width)]
    alike = all(domain == (domain[0],) * width for domain in domains)
    return width if alike and len({domain[0] for domain in domains}) == len(domains) else 0


def build(spec: Spec) -> Schedule:
    """One lane per channel. Where domains are not alike, or have one rank each, or there is but one: direct."""
    width = regular(spec.placement)
    if width in (0, 1, spec.nranks):
        return direct.build(spec)
    domains = Domains.of(spec)

    def lane(rank: int, piece: int) -> list[Step]:
        domain, rail = domains.domain_of[rank], rank % width
        members = domains.members[domain]
        sources = tuple(Peer(member, memory=member != rank) for member in members)
        steps = []
        for s in range(1, domains.count):
            target = domains.members[(domain + s) % domains.count][rail]
            chunk = inp(target * spec.channels + piece)
            steps.append(Step(Kind.GATHER, chunk, recv=sources, send=(Peer(target),), parts=1))
        # Local copies fill the time until the first messages arrive.
        steps += [read(rank, m, rank * spec.channels + piece, m * spec.channels + piece) for m in members]
        for s in range(1, domains.count):
            origin = domains.members[(domain - s) % domains.count]
            into = out(origin[0] * spec.channels + piece)
            steps.append(Step(Kind.SPREAD, None, into, (Peer(origin[rail]),), parts=width))
        return steps

    def lanes(rank: int) -> list[list[Step]]:
        return [lane(rank, piece) for piece in range(spec.channels)]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes, width)


def shape(call: cost.Call) -> cost.Shape:
    """Direct with fewer messages, of which each rank reads all but its own share in other ranks' memory."""
    return dataclasses.replace(direct.shape(call), messages=call.topology.domains - 1, memory_bytes=shared_bytes(call))


def shared_bytes(call: cost.Call) -> int:
    """Bytes that a rank copies where messages are gathered: an eighth more than by direct, of its own memory alone.

    Measured between four hosts, and between four processes of a host, of two ranks each, from 16 KiB to 16 MiB.
    """
    return 2 * call.total * 9 // 8 if call.topology.width > 1 else 0


def differs(placement: tuple[int, ...]) -> bool:
    """Whether domains are alike and have several ranks; otherwise it is direct."""
    return regular(placement) > 1


ALGORITHMS = (
    Algorithm(
        name="pxn",
        summary="a message per domain and rail, gathered by memory",
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
