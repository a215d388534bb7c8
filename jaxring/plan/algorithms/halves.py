"""The two halves of a permute as schedules of their own: buffered sends, and the receives that match them later.

A half alone is no collective, so the verifier checks the whole (`direct` permute); message for message it is the same.
"""

from __future__ import annotations

from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Lane, Peer, Schedule, Spec, Step


def build_half(spec: Spec, half: str) -> Schedule:
    """``half`` "send": every source sends its input to its target. "recv": every target receives, others get zeros."""
    targets = dict(spec.perm)
    sources = {target: source for source, target in spec.perm}

    def lanes(rank: int) -> list[Lane]:
        if half == "send":
            if rank not in targets:
                return [()]
            return [(Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), send=(Peer(targets[rank]),)),)]
        output = Chunk(Buffer.OUTPUT, 0)
        if rank not in sources:
            return [(Step(Kind.MOVE, dst=output, flags=Flag.ZERO),)]
        return [(Step(Kind.MOVE, dst=output, recv=(Peer(sources[rank]),)),)]

    return Schedule(spec, 1, 1, 0, lanes)
