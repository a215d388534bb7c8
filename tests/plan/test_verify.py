"""The verifier finds faults: each test breaks a good schedule in one way and reads the sentence that comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jaxring.plan.algorithms import build, custom
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Schedule, ScheduleError, Spec, Step
from jaxring.plan.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

RING = Spec("all_reduce", 4, "ring")


def mutate(schedule: Schedule, rank: int, lane: int, change: Callable[[list[Step]], None]) -> Schedule:
    """The schedule with ``change`` applied to a copy of one lane."""

    def lanes(which: int) -> list[list[Step]]:
        result = [list(steps) for steps in schedule.lanes(which)]
        if which == rank:
            change(result[lane])
        return result

    return replace(schedule, lanes_fn=lanes)


def edit(index: int, **fields: object) -> Callable[[list[Step]], None]:
    def change(steps: list[Step]) -> None:
        steps[index] = steps[index]._replace(**fields)

    return change


def swap(i: int, j: int) -> Callable[[list[Step]], None]:
    def change(steps: list[Step]) -> None:
        steps[i], steps[j] = steps[j], steps[i]

    return change


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("rank", range(4))
def test_any_dropped_step_is_noticed(rank: int, step: int) -> None:
    with pytest.raises(ScheduleError):
        verify(mutate(build(RING), rank, 0, lambda steps: steps.pop(step) and None))


def test_a_dropped_last_step_leaves_a_message() -> None:
    with pytest.raises(ScheduleError, match=r"rank 2, lane 0 never receives 1 message\(s\) of rank 1"):
        verify(mutate(build(RING), 2, 0, lambda steps: steps.pop() and None), tiles=1)


def test_swapped_sends() -> None:
    def change(steps: list[Step]) -> None:
        # The same receives in the same places, but the two forwarded values the other way round.
        first, second = steps[4], steps[5]
        steps[4] = first._replace(dst=second.dst)
        steps[5] = second._replace(dst=first.dst)

    with pytest.raises(ScheduleError, match="rank 1, lane 0, step 4: piece 1 does not fit output piece 0"):
        verify(mutate(build(RING), 1, 0, change))
    # Rank 4 hands its chunks to rank 0, which folds each with its own.
    with pytest.raises(ScheduleError, match=r"rank 0, lane 0, step \d: it folds chunk \d onto chunk \d"):
        verify(mutate(build(Spec("all_reduce", 5, "halving_doubling")), 4, 0, swap(0, 1)))


def test_swapped_sends_between_blocks_of_one_length() -> None:
    # The lengths agree, so only the contents tell.
    def change(steps: list[Step]) -> None:
        first, second = steps[1], steps[2]
        steps[1] = first._replace(dst=second.dst)
        steps[2] = second._replace(dst=first.dst)

    with pytest.raises(ScheduleError, match=r"has chunk \d of rank\(s\) \d in output chunk"):
        verify(mutate(build(Spec("all_gather", 4, "ring")), 0, 0, change))


def test_wrong_chunks() -> None:
    with pytest.raises(ScheduleError, match="rank 2, lane 0, step 1: it folds chunk 0 onto chunk 1"):
        verify(mutate(build(RING), 2, 0, edit(1, src=Chunk(Buffer.INPUT, 0))))
    with pytest.raises(ScheduleError, match="there is no chunk 4 in INPUT"):
        verify(mutate(build(RING), 2, 0, edit(0, src=Chunk(Buffer.INPUT, 4))))
    with pytest.raises(ScheduleError, match="there is no chunk 0 in SCRATCH"):
        verify(mutate(build(RING), 2, 0, edit(0, src=Chunk(Buffer.SCRATCH, 0))))
    with pytest.raises(ScheduleError, match="the input must not be written"):
        verify(mutate(build(RING), 2, 0, edit(4, dst=Chunk(Buffer.INPUT, 0))))


def test_final_and_partial_flags() -> None:
    ring = build(RING)
    with pytest.raises(ScheduleError, match=r"rank 0, lane 0, step 3: chunk 1 is complete here, but .* lacks FINAL"):
        verify(mutate(ring, 0, 0, edit(3, flags=Flag.RECV_PARTIAL)))
    with pytest.raises(ScheduleError, match="step 2: FINAL on chunk 2, but the contribution of rank 1 is missing"):
        verify(mutate(ring, 0, 0, edit(2, flags=Flag.FINAL | Flag.RECV_PARTIAL)))
    with pytest.raises(ScheduleError, match="it expects a raw one"):
        verify(mutate(ring, 0, 0, edit(2, flags=Flag.SEND_PARTIAL)))
    with pytest.raises(ScheduleError, match="a partial fold is sent without SEND_PARTIAL"):
        verify(mutate(ring, 0, 0, edit(1, flags=Flag.NONE)))
    with pytest.raises(ScheduleError, match="a raw input is sent with SEND_PARTIAL"):
        verify(mutate(ring, 0, 0, edit(0, flags=Flag.SEND_PARTIAL)))
    with pytest.raises(ScheduleError, match="FINAL belongs on the REDUCE"):
        verify(mutate(ring, 0, 0, edit(0, flags=Flag.FINAL)))
    with pytest.raises(ScheduleError, match="RECV_PARTIAL on a step that receives no message"):
        verify(mutate(ring, 0, 0, edit(0, flags=Flag.RECV_PARTIAL)))


def test_partials_stay_out_of_the_output() -> None:
    with pytest.raises(ScheduleError, match=r"a partial fold .* chunk 2 of rank 0; outputs take complete .*FINAL"):
        verify(mutate(build(RING), 0, 0, edit(2, dst=Chunk(Buffer.OUTPUT, 2))))


def test_duplicate_contributions() -> None:
    direct = build(Spec("all_reduce", 4, "direct", placement=(0,) * 4))
    twice = tuple(Peer(r, memory=True) for r in (1, 2, 3, 1))
    with pytest.raises(ScheduleError, match="duplicate contribution"):
        verify(mutate(direct, 0, 0, edit(0, recv=twice)))


def _scratch_twice(rank: int) -> list[list[Step]]:
    if rank:
        return [[Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), send=(Peer(0),)),
                 Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), send=(Peer(0),)),
                 Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, 0), (Peer(0),))]]  # fmt: skip
    own, out, scratch = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0), Chunk(Buffer.SCRATCH, 0)
    return [[Step(Kind.REDUCE, own, scratch, (Peer(1),)),
             Step(Kind.REDUCE, scratch, out, (Peer(0), Peer(1)), (Peer(1),), Flag.FINAL)]]  # fmt: skip


def test_a_contribution_twice_by_way_of_scratch() -> None:
    with pytest.raises(ScheduleError, match="the contribution of rank 1 to chunk 0 is folded twice"):
        custom(Spec("all_reduce", 2, "mine"), _scratch_twice, 1, scratch_chunks=1)


def test_deadlocks() -> None:
    ring = build(RING)
    with pytest.raises(ScheduleError, match="deadlock: it waits for a message from rank"):
        verify(replace(ring, lanes_fn=lambda rank: [ring.lanes(rank)[0][1:]]))

    def flood(rank: int) -> list[list[Step]]:
        # Three messages each before either receives one: three slots are needed.
        send = [Step(Kind.MOVE, Chunk(Buffer.INPUT, p), send=(Peer(1 - rank),)) for p in range(3)]
        recv = [Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, p), (Peer(1 - rank),)) for p in range(3)]
        return [[*send, *recv]]

    spec = Spec("permute", 2, "flood", perm=((0, 1), (1, 0)))
    with pytest.raises(ScheduleError, match=r"lane 0, step 2: deadlock: the FIFO to rank \d stays full at depth 2"):
        custom(spec, flood, 3)
    assert verify(custom(spec, flood, 3, fifo_depth=3), fifo_depth=3).max_fifo == 3


def test_two_lanes_touch_one_chunk() -> None:
    spec = Spec("broadcast", 2, "direct", placement=(0, 0))
    pull = build(spec).lanes

    def both(rank: int) -> list[tuple[Step, ...]]:
        return [pull(rank)[0], pull(rank)[0]]

    with pytest.raises(ScheduleError, match="lane 1 touches output chunk 0 of rank 0, which rank 0, lane 0 touches"):
        verify(replace(build(spec), nlanes=2, lanes_fn=both))


def test_in_place_all_reduce_may_not_be_read_by_others() -> None:
    def late(rank: int) -> list[list[Step]]:
        # Every rank folds all inputs itself. Right out of place, but in place others still read what it overwrites.
        recv = tuple(Peer(r, memory=r != rank) for r in range(2))
        return [[Step(Kind.REDUCE, Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0), recv, flags=Flag.FINAL)]]

    with pytest.raises(ScheduleError, match="nothing orders the two"):
        custom(Spec("all_reduce", 2, "mine", placement=(0, 0)), late, 1)


def test_memory_peers_must_share_a_domain() -> None:
    direct = build(Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)))
    apart = replace(direct, spec=replace(direct.spec, placement=(0, 0, 1, 1)))
    with pytest.raises(ScheduleError, match="by memory, which is not another rank of its domain"):
        verify(apart)


def test_zeros_are_required_and_recognised() -> None:
    reduce = build(Spec("reduce", 3, "ring", root=1))
    with pytest.raises(ScheduleError, match="rank 2 never gets output chunk 0"):
        verify(mutate(reduce, 2, 0, lambda steps: steps.pop() and None))
    with pytest.raises(ScheduleError, match="a ZERO step has no source"):
        verify(mutate(reduce, 2, 0, edit(-1, src=Chunk(Buffer.INPUT, 0))))
    spread = build(Spec("broadcast", 2, "ring"))
    zero = Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, 0), flags=Flag.ZERO)
    send = Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), send=(Peer(1),))
    with pytest.raises(ScheduleError, match="rank 0 has zeros in output chunk 0"):
        verify(mutate(spread, 0, 0, lambda steps: steps.__setitem__(slice(0, 1), [send, zero])))


def test_scratch_is_read_after_it_is_written() -> None:
    hd = build(Spec("all_reduce", 8, "halving_doubling"))
    steps = hd.lanes(0)[0]
    first = next(i for i, step in enumerate(steps) if step.dst and step.dst.buffer == Buffer.SCRATCH)
    with pytest.raises(ScheduleError, match="it reads scratch chunk 1 before anything is written there"):
        verify(mutate(replace(hd, scratch_chunks=2), 0, 0, edit(first + 1, src=Chunk(Buffer.SCRATCH, 1))))


def test_a_custom_schedule_reports_its_order() -> None:
    def star(rank: int) -> list[list[Step]]:
        everyone = tuple(Peer(r) for r in (2, 0, 1))
        if rank == 0:
            others = (Peer(1), Peer(2))
            chunk = (Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0))
            return [[Step(Kind.REDUCE, *chunk, everyone, others, Flag.FINAL)]]
        return [[Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), send=(Peer(0),)),
                 Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, 0), (Peer(0),))]]  # fmt: skip

    schedule = custom(Spec("all_reduce", 3, "star"), star, pieces=1)
    report = verify(schedule)
    assert report.fold_order(0) == "2+0+1"
    assert report.messages == (2, 1, 1)
    with pytest.raises(ValueError, match="built-in"):
        custom(RING, star, pieces=1)
