"""One-shot: every rank sends its whole vector to every other one and folds all of them itself.

One message deep where direct is two, for n - 1 times the bytes: for small vectors, where a hop costs more than the
bytes. Folds in rank order in a single step, so it gives direct's bits on every rank.
"""

from __future__ import annotations

from jaxring.plan.algorithms.common import fold, inp, out
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step

COLLECTIVES = ("all_reduce",)


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
