"""Algorithms in MSCCL's XML become schedules that are verified and run by their name."""

from __future__ import annotations

import itertools

import pytest

from jaxring.plan import msccl, msccl_writer
from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Buffer, Kind, ScheduleError, Spec
from jaxring.plan.user import build_user
from jaxring.plan.verify import verify

_numbers = itertools.count()


def step(number: int, kind: str, src: int, dst: int, buffers: str, deps: tuple[int, int] = (-1, -1)) -> str:
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{buffers[0]}" srcoff="{src}" dstbuf="{buffers[1]}" dstoff="{dst}" '
        f'cnt="1" depid="{deps[0]}" deps="{deps[1]}" hasdep="0"/>'
    )


def algo(collective: str, ranks: int, chunks: int, gpus: list[str], inplace: int = 0) -> tuple[str, str]:
    name = f"msccl_test_{next(_numbers)}"
    body = "".join(
        f'<gpu id="{i}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="0">{each}</gpu>'
        for i, each in enumerate(gpus)
    )
    return name, (
        f'<algo name="{name}" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{ranks}" '
        f'coll="{collective}" inplace="{inplace}">{body}</algo>'
    )


def ring_all_reduce(ranks: int, channels: int = 1, inplace: int = 0) -> tuple[str, str]:
    gpus = []
    for g in range(ranks):
        blocks = ""
        for c in range(channels):
            buffers = "ii" if inplace else "io"
            lines = []
            for s in range(ranks):
                off = (g - s) % ranks * channels + c
                kind = "s" if s == 0 else "rrcs" if s == ranks - 1 else "rrs"
                lines.append(step(s, kind, off, off, buffers))
            for s in range(1, ranks):
                off = (g - s + 1) % ranks * channels + c
                lines.append(step(ranks + s - 1, "r" if s == ranks - 1 else "rcs", 0, off, buffers))
            around = (g + 1) % ranks, (g - 1) % ranks
            blocks += f'<tb id="{c}" send="{around[0]}" recv="{around[1]}" chan="{c}">{"".join(lines)}</tb>'
        gpus.append(blocks)
    return algo("allreduce", ranks, ranks * channels, gpus, inplace)


@pytest.mark.parametrize("inplace", [0, 1])
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (4, 1), (5, 3)])
def test_a_ring_is_our_ring(ranks, channels, inplace):
    name, text = ring_all_reduce(ranks, channels, inplace)
    assert msccl.register(text) == (name, "all_reduce")
    msccl.register(text)  # again changes nothing
    schedule = build_user(Spec("all_reduce", ranks, name))
    ours = build(Spec("all_reduce", ranks, "ring", channels=channels))
    assert (schedule.pieces, schedule.nlanes) == (ours.pieces, ours.nlanes)
    assert verify(schedule).messages == verify(ours).messages


def test_partial_results_that_are_kept():
    """Rank 1 folds into its own buffer first and sends later, by a block that depends on the first."""
    up = '<tb id="0" send="1" recv="-1" chan="0">' + step(0, "s", 0, 0, "ii") + "</tb>"
    down = '<tb id="1" send="-1" recv="1" chan="0">' + step(0, "r", 0, 0, "ii") + "</tb>"
    take = '<tb id="0" send="-1" recv="0" chan="0">' + step(0, "rrc", 0, 0, "ii") + "</tb>"
    on = (
        '<tb id="1" send="2" recv="2" chan="0">' + step(0, "s", 0, 0, "ii", (0, 0)) + step(1, "r", 0, 0, "ii") + "</tb>"
    )
    back = '<tb id="2" send="0" recv="-1" chan="0">' + step(0, "s", 0, 0, "ii", (1, 1)) + "</tb>"
    last = '<tb id="0" send="1" recv="1" chan="0">' + step(0, "rrcs", 0, 0, "ii") + "</tb>"
    name, text = algo("allreduce", 3, 1, [up + down, take + on + back, last], inplace=1)
    msccl.register(text)
    assert verify(build_user(Spec("all_reduce", 3, name))).fold_order(0) == "0+1+2"


@pytest.mark.parametrize("ranks", [2, 4])
def test_operands_that_are_kept_and_reduced_later(ranks):
    """All pairs: each rank takes the others' operands of its chunk into scratch, reduces them by steps of their own,
    and sends the result to all."""
    gpus = []
    for rank in range(ranks):
        peers = [each for each in range(ranks) if each != rank]
        add = ranks  # the thread block that reduces
        blocks = ""
        for number, peer in enumerate(peers):
            steps = step(0, "s", peer, 0, "is") + step(1, "r", 0, number, "is")
            steps += step(2, "s", rank, 0, "oo", (add, len(peers))) + step(3, "r", 0, peer, "oo")
            blocks += f'<tb id="{number}" send="{peer}" recv="{peer}" chan="0">{steps}</tb>'
        steps = step(0, "cpy", rank, rank, "io", (len(peers) - 1, 1))
        for number in range(len(peers)):
            steps += step(1 + number, "re", number, rank, "so", (number, 1))
        gpus.append(blocks + f'<tb id="{add}" send="-1" recv="-1" chan="0">{steps}</tb>')
    name, text = algo("allreduce", ranks, ranks, gpus)
    msccl.register(text)
    schedule = build_user(Spec("all_reduce", ranks, name))
    assert verify(schedule).messages == (2 * (ranks - 1),) * ranks
    assert schedule.pieces == ranks


def sends_an_operand_on() -> tuple[str, str]:
    """Rank 0's operand goes to rank 2 by rank 1, which keeps it, and reduces nothing itself."""
    first = '<tb id="0" send="1" recv="-1" chan="0">' + step(0, "s", 0, 0, "is") + "</tb>"
    back = '<tb id="1" send="-1" recv="2" chan="0">' + step(0, "r", 0, 0, "io") + "</tb>"
    keep = '<tb id="0" send="2" recv="0" chan="0">' + step(0, "r", 0, 3, "is") + step(1, "s", 0, 0, "is")
    keep += step(2, "s", 3, 0, "ss") + "</tb>"
    get = '<tb id="1" send="-1" recv="2" chan="0">' + step(0, "r", 0, 0, "io") + "</tb>"
    add = '<tb id="0" send="1" recv="1" chan="0">' + step(0, "rrc", 0, 0, "is") + step(1, "rrcs", 0, 0, "so") + "</tb>"
    last = '<tb id="1" send="0" recv="-1" chan="0">' + step(0, "s", 0, 0, "oi", (0, 1)) + "</tb>"
    return algo("allreduce", 3, 1, [first + back, keep + get, add + last])


def test_an_operand_of_another_rank_is_sent_on():
    name, text = sends_an_operand_on()
    msccl.register(text)
    schedule = build_user(Spec("all_reduce", 3, name))
    assert verify(schedule).messages == (1, 2, 2)
    # Scratch holds what a reduction has made, here one of a single operand.
    kept = [step for step in schedule.lanes(1)[0] if step.dst and step.dst.buffer is Buffer.SCRATCH]
    assert [(step.kind, len(step.recv)) for step in kept] == [(Kind.REDUCE, 1)]


def test_all_gather():
    gpus = [
        f'<tb id="0" send="{1 - g}" recv="{1 - g}" chan="0">'
        + step(0, "cpy", 0, g, "io")
        + step(1, "s", 0, 0, "io")
        + step(2, "r", 0, 1 - g, "io")
        + "</tb>"
        for g in range(2)
    ]
    name, text = algo("allgather", 2, 1, gpus)
    msccl.register(text)
    assert verify(build_user(Spec("all_gather", 2, name))).messages == (1, 1)
    with pytest.raises(ValueError, match=f"{name} is for 2 ranks, not 3"):
        build_user(Spec("all_gather", 3, name))


def test_a_wrong_algorithm_is_found_by_the_verifier():
    name, text = ring_all_reduce(4)
    msccl.register(text.replace('type="rrcs" srcbuf="i" srcoff="1"', 'type="rrcs" srcbuf="i" srcoff="2"'))
    with pytest.raises(ScheduleError, match="rank "):
        build_user(Spec("all_reduce", 4, name))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<algo", "<algo<", "it is no XML"),
        ('coll="allreduce"', 'coll="sum"', "its collective is 'sum'"),
        ('type="rrs"', 'type="rr"', "type 'rr'"),
        ('type="rrs"', 'type="re"', r"rank 0 reads o\[3\] before anything is written there"),
        ('ngpus="4"', 'ngpus="x"', "ngpus='x', which is no number"),
        ('<gpu id="3"', '<gpu id="2"', "does not describe each of the 4 ranks once"),
        ('type="s"', 'type="nop"', "never gets what it waits for"),
        ('srcbuf="i" srcoff="0"', 'srcbuf="x" srcoff="0"', "srcbuf is 'x'"),
        ('type="rrs"', 'type="r"', "never gets what it waits for"),
        ('type="rrcs"', 'type="rrc"', "never gets what it waits for"),
        ('type="rrcs" srcbuf="i" srcoff="1"', 'type="rcs" srcbuf="i" srcoff="1"', "that lacks rank"),
    ],
)
def test_what_cannot_be_read(old, new, why):
    _, text = ring_all_reduce(4)
    assert old in text
    with pytest.raises(ValueError, match=why):
        msccl.register(text.replace(old, new))


@pytest.mark.parametrize(("collective", "channels"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 2)])
def test_what_is_written_is_read_again(collective, channels):
    ours = build(Spec(collective, 4, "ring", channels=channels))
    name, read = msccl.register(msccl_writer.text(ours))
    assert (name, read) == (f"jaxring_ring_{collective}_4", collective)
    again = verify(build_user(Spec(collective, 4, name)))
    assert again.messages == verify(ours).messages
    if collective != "all_gather":
        assert again.fold_order(0) == verify(ours).fold_order(0)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)), "goes by memory"),
        (Spec("all_reduce", 4, "tree"), "MSCCL's have one each"),
        (Spec("gather", 4, "direct"), "MSCCL has no gather"),
    ],
)
def test_what_cannot_be_written(spec, why):
    with pytest.raises(ValueError, match=why):
        msccl_writer.text(build(spec))
