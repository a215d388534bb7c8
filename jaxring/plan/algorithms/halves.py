"""The two halves of a permute as schedules of their own: buffered sends, and the receives that match them later.

A half alone is no collective, so the verifier checks the whole (`direct` permute); message for message it is the same.
"""

from __future__ import annotations

from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Lane, Peer, Schedule, Spec, Step


def build_half(spec: Spec, half: str) -> Schedule:
    """``half`` "send": every source sends its input to its target. "recv": every target receives, others get zeros."""
    targets = dict(spec.perm)
    sources = {target: source for source, target in spec.perm}

    def lane(rank: int, piece: int) -> Lane:
        if half == "send":
            if rank not in targets:
                return ()
            return (Step(Kind.MOVE, Chunk(Buffer.INPUT, piece), send=(Peer(targets[rank]),)),)
        output = Chunk(Buffer.OUTPUT, piece)
        if rank not in sources:
            return (Step(Kind.MOVE, dst=output, flags=Flag.ZERO),)
        return (Step(Kind.MOVE, dst=output, recv=(Peer(sources[rank]),)),)

    def lanes(rank: int) -> list[Lane]:
        return [lane(rank, piece) for piece in range(spec.channels)]

    return Schedule(spec, spec.channels, spec.channels, 0, lanes)
