"""A schedule that cannot end is told with the cycle of ranks that wait for each other."""

from __future__ import annotations

import pytest

from jaxring.plan.algorithms.common import inp, out
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step
from jaxring.simulate.deadlock import Deadlock
from jaxring.simulate.model import Model
from tests.simulate.support import mesh, run


def around(rank: int) -> list[list[Step]]:
    """Each rank waits for its left neighbour before it sends to the right one."""
    return [
        [
            Step(Kind.MOVE, None, out(0), (Peer((rank - 1) % 3),)),
            Step(Kind.MOVE, inp(0), send=(Peer((rank + 1) % 3),)),
        ]
    ]


def test_the_cycle_is_named():
    schedule = Schedule(Spec("all_gather", 3, "around"), 1, 1, 0, around)
    with pytest.raises(Deadlock, match="rank 0, lane 0, step 0 waits for a message from rank 2") as caught:
        run(schedule, 64, mesh(3), Model())
    assert {rank for rank, _, _ in caught.value.cycle} == {0, 1, 2}
    assert "closes the cycle" in str(caught.value)


def test_a_message_that_is_never_sent():
    def lanes(rank: int) -> list[list[Step]]:
        return [[Step(Kind.MOVE, None, out(0), (Peer(1),))] if rank == 0 else []]

    with pytest.raises(Deadlock, match="rank 0, lane 0, step 0 waits for a message from rank 1") as caught:
        run(Schedule(Spec("all_gather", 2, "silent"), 1, 1, 0, lanes), 64, mesh(2), Model())
    assert caught.value.cycle == ()


def test_full_connections():
    def lanes(rank: int) -> list[list[Step]]:
        other = Peer(1 - rank)
        send = Step(Kind.MOVE, inp(0), send=(other,))
        return [[send, send, send, *[Step(Kind.MOVE, None, out(0), (other,))] * 3]]

    schedule = Schedule(Spec("all_gather", 2, "eager"), 1, 1, 0, lanes)
    run(schedule, 64, mesh(2), Model(slots=3))
    with pytest.raises(Deadlock, match="waits for a slot on the way to rank 1"):
        run(schedule, 64, mesh(2), Model(slots=2))
