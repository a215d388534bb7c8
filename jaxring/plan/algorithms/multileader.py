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
from jaxring.plan.algorithms import direct, gathered
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Schedule, Spec

# Chunks of a message, so that an element of each, 16 bytes at most, fits in half of the smallest slot.
_MOST_CHUNKS = 128


def differs(placement: tuple[int, ...]) -> bool:
    """Whether domains are alike and have several ranks, but not too many; otherwise it is direct."""
    return 1 < gathered.regular(placement) <= math.isqrt(_MOST_CHUNKS)


def build(spec: Spec) -> Schedule:
    """One lane per channel. Where it does not differ from direct, or there is one domain: direct."""
    if not differs(spec.placement) or gathered.regular(spec.placement) == spec.nranks:
        return direct.build(spec)
    return gathered.build(spec, for_all=True)


def shape(call: cost.Call) -> cost.Shape:
    """PXN with fewer messages. A rank that is the leader of more pairs copies more than the others."""
    pairs, width = call.topology.domains - 1, call.topology.width
    messages = -(-pairs // width)
    copied = gathered.memory_bytes(call) * messages * width // pairs
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
        # The kernels do not gather messages.
        engines=frozenset({"CPU"}),
        unasked=frozenset({"CPU"}),
        differs=differs,
    ),
)
