"""One-shot: every rank sends its whole vector to every other one and folds all of them itself.

One message deep where direct is two, for n - 1 times the bytes: for small vectors, where a hop costs more than the
bytes. Folds in rank order in a single step, so it gives direct's bits on every rank.
"""

from __future__ import annotations

from jaxring.plan import cost
from jaxring.plan.algorithms.common import fold, inp, out
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step


def build(spec: Spec) -> Schedule:
    """One lane and one piece per channel."""
    n = spec.nranks

    def lanes(rank: int) -> list[list[Step]]:
        sources = [(Peer(r), False) for r in range(n)]
        return [
            # Staggered, so that no rank is everybody's first.
            [Step(Kind.MOVE, inp(piece), send=(Peer((rank + s) % n),)) for s in range(1, n)]
            + fold(rank, piece, sources, out(piece), final=True)
            for piece in range(spec.channels)
        ]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes)


def shape(call: cost.Call) -> cost.Shape:
    """One hop. Every rank folds the whole vector and not a share of it: half a byte more for each that comes."""
    n = call.count
    wire = call.total * call.outside * call.crossing
    crowded = wire * call.constants.crowd_percent // 100 if n > 2 else wire
    return cost.Shape(1, n - 1, crowded + call.total * (n - 1) // 2, 0)


ALGORITHMS = (
    Algorithm(
        name="oneshot",
        summary="whole vectors to everybody, one hop; rank order",
        collectives=frozenset({"all_reduce"}),
        build=build,
        shape=shape,
        preference=1,
        partials=False,
        # Between GPUs of one domain direct reads memory in its place; elsewhere it was not measured.
        unasked=frozenset({"CPU"}),
    ),
)
