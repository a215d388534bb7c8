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
from jaxring.plan.algorithms import direct, gathered
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Schedule, Spec


def build(spec: Spec) -> Schedule:
    """One lane per channel. Where domains are not alike, or have one rank each, or there is but one: direct."""
    if gathered.regular(spec.placement) in (0, 1, spec.nranks):
        return direct.build(spec)
    return gathered.build(spec, for_all=False)


def shape(call: cost.Call) -> cost.Shape:
    """Direct with fewer messages, of which each rank reads all but its own share in other ranks' memory."""
    messages, copied = call.topology.domains - 1, gathered.memory_bytes(call)
    return dataclasses.replace(direct.shape(call), messages=messages, memory_bytes=copied)


def differs(placement: tuple[int, ...]) -> bool:
    """Whether domains are alike and have several ranks; otherwise it is direct."""
    return gathered.regular(placement) > 1


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
