"""The choice for a call that asks for an algorithm of the user's own: its table is that of the call's root."""

from __future__ import annotations

from jaxring.plan.schedule import Buffer, Chunk, Kind, Peer, Spec, Step
from jaxring.plan.user import register_algorithm
from jaxring.runtime.choice import choose
from tests.runtime.chosen_call import chosen_call

IN, OUT = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)
RANKS = (0, 1, 2)


def from_root(spec: Spec, rank: int) -> list[list[Step]]:
    if rank != spec.root:
        return [[Step(Kind.MOVE, dst=OUT, recv=(Peer(spec.root),))]]
    return [[Step(Kind.MOVE, IN, OUT, send=tuple(Peer(other) for other in range(spec.nranks) if other != rank))]]


def only_from_2(spec: Spec, rank: int) -> list[list[Step]]:
    if spec.root != 2:
        raise ValueError("only from 2")
    return from_root(spec, rank)


register_algorithm("test_only_from_2", "broadcast", only_from_2)


def test_it_is_priced_for_the_root_of_the_call() -> None:
    call = chosen_call("broadcast", RANKS, root=2, algorithm="test_only_from_2")
    found = choose(call, RANKS, RANKS, root=2)
    assert (found.algorithm, found.protocol, found.channels) == ("test_only_from_2", "simple", 1)
    # Two copies of 256 KiB leave the root, at a nanosecond a byte.
    assert found.details["test_only_from_2/simple"].predicted.bandwidth == 2 * (1 << 18) / 1000
