"""The pass that puts an epilogue into a schedule, what the verifier proves of it, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from jaxring.plan import cost, tuner
from jaxring.plan.algorithms import ALGORITHMS, build, custom
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.epilogue import with_epilogue
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Results, Schedule, ScheduleError, Spec, Step
from jaxring.plan.show import show
from jaxring.plan.verify import verify
from jaxring.simulate import clusters
from jaxring.simulate.run import simulate
from tests.plan.test_algorithms import placements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REDUCTIONS = [name for name, each in COLLECTIVES.items() if each.reduces]
PAIRS = [(name, each) for name, algorithm in ALGORITHMS.items() for each in REDUCTIONS if each in algorithm.collectives]
RING = Spec("all_reduce", 4, "ring")


def specs(name: str, collective: str) -> Iterator[Spec]:
    for n in (1, 2, 3, 4, 7, 8):
        for placement in placements(n) if ALGORITHMS[name].memory else placements(n)[1:2]:
            for channels in (1, 2):
                yield Spec(
                    collective,
                    n,
                    name,
                    root=n - 1 if collective == "reduce" else 0,
                    channels=channels,
                    placement=placement,
                )


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_every_schedule_of_a_reduction_takes_one(name: str, collective: str) -> None:
    for spec in specs(name, collective):
        plain = build(spec)
        report = verify(with_epilogue(plain))
        # It adds no step and no message, and folds in the same order.
        assert report == verify(plain)


@pytest.mark.parametrize("name", [name for name, each in PAIRS if each == "reduce_scatter"])
def test_every_reduce_scatter_makes_results_where_they_stay(name: str) -> None:
    keeps = ALGORITHMS[name].keeps
    for spec in specs(name, "reduce_scatter"):
        if keeps(spec.nranks):
            verify(with_epilogue(build(spec), Results.OWN))
    assert keeps(4)


def test_a_reduce_scatter_that_hands_results_over() -> None:
    with pytest.raises(ScheduleError, match="is made at another rank"):
        verify(with_epilogue(build(Spec("reduce_scatter", 3, "halving_doubling")), Results.OWN))
    where = tuple(range(3))
    asked = ("reduce_scatter", where, where, 1 << 10, "float32")
    assert "halving_doubling" in str(tuner.choose(*asked).candidates)
    assert "halving_doubling" not in str(tuner.choose(*asked, own=True).candidates)
    with pytest.raises(ValueError, match=r"'halving_doubling' completes results of 3 ranks at ranks .*; use direct or"):
        tuner.choose(*asked, "halving_doubling", own=True)


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling"])
def test_an_all_reduce_that_spreads_does_not_have_operands_of_its_own(name: str) -> None:
    with pytest.raises(ScheduleError, match="is made at another rank, which does not have that rank's operands"):
        verify(with_epilogue(build(Spec("all_reduce", 4, name)), Results.OWN))


def changed(
    schedule: Schedule, where: Callable[[Step], bool], flags: Callable[[Flag], Flag], rank: int = 1
) -> Schedule:
    """``schedule`` with other flags on the first step of ``rank`` for which ``where`` holds."""

    def lanes(which: int) -> list[list[Step]]:
        result = [list(steps) for steps in schedule.lanes(which)]
        if which == rank:
            lane, at = next((lane, i) for lane in result for i, step in enumerate(lane) if where(step))
            lane[at] = lane[at]._replace(flags=flags(lane[at].flags))
        return result

    return replace(schedule, lanes_fn=lanes)


def is_final(step: Step) -> bool:
    return bool(step.flags & Flag.FINAL)


def folds_a_part(step: Step) -> bool:
    return step.kind is Kind.REDUCE and not is_final(step)


def moves_a_result(step: Step) -> bool:
    return step.kind is Kind.MOVE and step.dst is not None and step.dst.buffer is Buffer.OUTPUT


def test_applied_never() -> None:
    without = changed(with_epilogue(build(RING)), is_final, lambda flags: flags & ~Flag.EPILOGUE)
    with pytest.raises(
        ScheduleError, match=r"a complete value is stored to output chunk \d of rank \d without the epilogue"
    ):
        verify(without)


def test_applied_too_early() -> None:
    early = changed(with_epilogue(build(RING)), folds_a_part, lambda flags: flags | Flag.EPILOGUE)
    with pytest.raises(
        ScheduleError, match=r"the epilogue is applied to chunk \d before the contribution of rank \d is in"
    ):
        verify(early)


def test_applied_twice() -> None:
    twice = changed(with_epilogue(build(RING)), moves_a_result, lambda flags: flags | Flag.EPILOGUE)
    with pytest.raises(ScheduleError, match=r"rank 1, lane 0, step \d: the epilogue is applied twice to chunk \d"):
        verify(twice)


def test_applied_where_there_is_none() -> None:
    with pytest.raises(ScheduleError, match="EPILOGUE on a step of a schedule without an epilogue"):
        verify(changed(build(RING), is_final, lambda flags: flags | Flag.EPILOGUE))


def test_applied_behind_the_last_fold() -> None:
    """A value that is complete has been rounded, so a later step cannot apply the epilogue as the last fold does."""

    def lanes(rank: int) -> list[list[Step]]:
        other = Peer(1 - rank)
        out = Chunk(Buffer.OUTPUT, 0)
        if rank == 0:
            fold = Step(Kind.REDUCE, Chunk(Buffer.INPUT, 0), None, (Peer(0), other), (other,), Flag.FINAL)
            return [[fold, Step(Kind.MOVE, None, out, (other,))]]
        back = Step(Kind.MOVE, None, out, (other,), (other,), Flag.EPILOGUE)
        return [[Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), None, (), (other,)), back]]

    spec = Spec("all_reduce", 2, "mine")
    with pytest.raises(ScheduleError, match="EPILOGUE belongs on the FINAL step"):
        verify(Schedule(spec, 1, 1, 0, lanes, results=Results.APPLIED))

    def without(rank: int) -> list[list[Step]]:
        return [[step._replace(flags=step.flags & ~Flag.EPILOGUE) for step in lane] for lane in lanes(rank)]

    # The fault is where the value is stored, not what the message is taken for.
    with pytest.raises(
        ScheduleError, match="a complete value is stored to output chunk 0 of rank 1 without the epilogue"
    ):
        verify(Schedule(spec, 1, 1, 0, without, results=Results.APPLIED))
    custom(spec, without, 1)


def test_the_table_shows_it() -> None:
    assert "(final, epilogue)" in show(with_epilogue(build(RING)))
    assert "epilogue" not in show(build(RING))


def test_a_cast_takes_bytes_off_the_spreading_half() -> None:
    topology = cost.Topology.of((0, 1, 2, 3), (0, 0, 0, 0))
    ring = ALGORITHMS["ring"]
    plain = ring.shape_on("all_reduce", topology, 1 << 20)
    halved = ring.shape_on("all_reduce", topology, 1 << 20, spread=0.5)
    assert halved.wire_bytes == plain.wire_bytes * 3 // 4
    # A reduce-scatter has no such half, and what only moves data has no epilogue.
    for collective in ("reduce_scatter", "all_gather"):
        assert ring.shape_on(collective, topology, 1 << 20, spread=0.5) == ring.shape_on(collective, topology, 1 << 20)

    def us(spread: float) -> float:
        return tuner.choose(
            "all_reduce", (0, 1, 2, 3), (0, 1, 2, 3), 1 << 24, "float32", "ring", spread=spread
        ).candidates[0][1]

    assert us(0.5) < us(1.0)


def test_the_simulator_sends_results_of_the_cast() -> None:
    cluster = clusters.load("ethernet-25g")
    plain = simulate(cluster, 2, "all_reduce", 1 << 26, "ring", channels=1)
    cast = simulate(cluster, 2, "all_reduce", 1 << 26, "ring", channels=1, result="bfloat16")
    assert cast.messages <= plain.messages
    assert 0.7 < cast.time_us / plain.time_us < 0.85


@pytest.mark.parametrize("results", [Results.VALUES, Results.APPLIED])
def test_inputs_that_are_spread_are_no_results(results: Results) -> None:
    """Both ranks would end with rank 0's input, which nothing was folded onto or applied to."""

    def lanes(rank: int) -> list[list[Step]]:
        take = Step(Kind.SPREAD, None, Chunk(Buffer.OUTPUT, 0), (Peer(0),), (), parts=1)
        if rank == 1:
            return [[take]]
        put = Step(Kind.GATHER, Chunk(Buffer.INPUT, 0), None, (Peer(0),), (Peer(1),))
        return [[put, Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0), (), ())]]

    with pytest.raises(
        ScheduleError, match="GATHER and SPREAD move inputs as they are, which is no part of a reduction"
    ):
        verify(Schedule(Spec("all_reduce", 2, "mine"), 1, 1, 0, lanes, group=1, results=results))


def give(to: int) -> Step:
    return Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), None, (), (Peer(to),))


def take(source: int) -> Step:
    return Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, 0), (Peer(source),))


def relayed(passes: Chunk, takes: Chunk, rank: int) -> list[Step]:
    """Rank 1 passes rank 0's result on to rank 2. ``passes``, ``takes``: what they name as ``src`` for that."""
    own, result = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)
    if rank == 0:
        fold = Step(Kind.REDUCE, own, result, (Peer(0), Peer(1), Peer(2)), (Peer(1),), Flag.FINAL)
        return [fold, Step(Kind.MOVE, result, None, (), (Peer(1),))]
    if rank == 1:
        return [give(0), take(0), Step(Kind.MOVE, passes, None, (Peer(0),), (Peer(2),))]
    return [give(0), Step(Kind.MOVE, takes, result, (Peer(1),))]


def folded(part: Chunk, last: Chunk, rank: int) -> list[Step]:
    """Rank 1 folds inputs of ranks 0 and 3, and rank 0 parts of ranks 1 and 2: of messages alone.

    ``part``, ``last``: what they name as ``src`` for that.
    """
    own, result = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)
    if rank == 0:
        final = Flag.FINAL | Flag.RECV_PARTIAL
        return [give(1), Step(Kind.REDUCE, last, result, (Peer(1), Peer(2)), (Peer(1), Peer(2), Peer(3)), final)]
    if rank == 1:
        fold = Step(Kind.REDUCE, part, None, (Peer(0), Peer(3)), (Peer(0),), Flag.SEND_PARTIAL)
        return [give(2), fold, take(0)]
    if rank == 2:
        return [Step(Kind.REDUCE, own, None, (Peer(2), Peer(1)), (Peer(0),), Flag.SEND_PARTIAL), take(0)]
    return [give(1), take(0)]


def kept(named: Chunk, rank: int) -> list[Step]:
    """Rank 1 keeps a part of rank 0 in its scratch, naming ``named`` as ``src``, and folds rank 2's input onto it."""
    own, result, scratch = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0), Chunk(Buffer.SCRATCH, 0)
    if rank == 0:
        return [Step(Kind.REDUCE, own, None, (Peer(0), Peer(1)), (Peer(1),), Flag.SEND_PARTIAL), take(1)]
    if rank == 1:
        keep = Step(Kind.MOVE, named, scratch, (Peer(0),), (), Flag.RECV_PARTIAL)
        return [give(0), keep, Step(Kind.REDUCE, scratch, result, (Peer(1), Peer(2)), (Peer(0), Peer(2)), Flag.FINAL)]
    return [give(1), take(1)]


@pytest.mark.parametrize(
    ("steps", "ranks", "right", "wrong", "said"),
    [
        (relayed, 3, (2, 2), (1, 2), "rank 1, lane 0, step 2: a result of the epilogue is received; name a chunk"),
        (relayed, 3, (2, 2), (2, 1), "rank 2, lane 0, step 1: a result of the epilogue is received; name a chunk"),
        (folded, 4, (1, 1), (2, 1), "rank 1, lane 0, step 1: a message is folded; name no chunk"),
        (folded, 4, (1, 1), (1, 2), "rank 0, lane 0, step 1: a message is folded; name no chunk"),
        (kept, 3, (1,), (2,), "rank 1, lane 0, step 1: a partial fold is received; name no chunk"),
    ],
)
def test_a_message_has_the_length_of_what_it_holds(
    steps: Callable[..., list[Step]], ranks: int, right: tuple[int, ...], wrong: tuple[int, ...], said: str
) -> None:
    """A chunk that a step names for the length of a message is of the output only if the message is a result."""

    def schedule(buffers: tuple[int, ...]) -> Schedule:
        of = partial(steps, *(Chunk(Buffer(each), 0) for each in buffers))
        return Schedule(Spec("all_reduce", ranks, "mine"), 1, 1, 1, lambda rank: [of(rank)])

    verify(schedule(wrong))
    verify(with_epilogue(schedule(right)))
    with pytest.raises(ScheduleError, match=f"{said} of the output as its src"):
        verify(with_epilogue(schedule(wrong)))
