"""Execution plans of MSCCL++ become schedules that are verified and run by their name."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.foreign import mscclpp, mscclpp_writer, reading
from jaxring.plan.schedule import Kind, ScheduleError, Spec
from jaxring.plan.user import build_user
from jaxring.plan.verify import verify
from tests.plan.foreign.plans import Plan, all_reduce_by_packets, own, reduce_scatter_by_scratch


def built(plan: Plan, collective: str):
    assert reading.register(plan.text()) == (plan.name, collective)
    mscclpp.register(plan.text())  # again changes nothing
    return build_user(Spec(collective, plan.ranks, plan.name))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_reduce_scatter_by_scratch(ranks):
    schedule = built(reduce_scatter_by_scratch(ranks), "reduce_scatter")
    report = verify(schedule)
    assert report.messages == (ranks - 1,) * ranks
    # No operand is kept: the messages are added up as they are taken.
    assert schedule.scratch_chunks == 0
    assert report.fold_order(0) == "+".join(map(str, range(ranks)))


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (2, 5), (4, 1), (4, 3)])
def test_all_reduce_by_packets(ranks, chunks):
    """Also with more chunks than messages may wait on a connection."""
    report = verify(built(all_reduce_by_packets(ranks, chunks), "all_reduce"))
    assert report.messages == (2 * (ranks - 1) * chunks,) * ranks
    assert report.max_fifo <= 2


@pytest.mark.parametrize("name", ["rre", "get"])
def test_reads_of_other_ranks(name):
    """All-gather by reading, and all-reduce in which each rank reads all others' operands."""
    ranks = 3
    plan = Plan("allgather" if name == "get" else "allreduce", ranks, (1, ranks if name == "get" else 1))
    for rank in range(ranks):
        far = [plan.far(rank, peer, "i", 0) for peer in plan.peers(rank)]
        if name == "get":
            ops = [plan.data("get", far, [own("o", peer) for peer in plan.peers(rank)])]
            ops.append(plan.data("copy", [own("i", 0)], [own("o", rank)]))
        else:
            ops = [plan.data("rre", [own("i", 0), *far], [own("o", 0)])]
        plan.blocks[rank] = [ops]
    report = verify(built(plan, "all_gather" if name == "get" else "all_reduce"))
    assert report.messages == (2, 2, 2)
    # Bits are the same on all ranks, though each lists its own operand first.
    assert name == "get" or report.fold_order(0) == "0+1+2"


def test_a_chunk_that_is_passed_on():
    """rppkt reads packets and puts them to others."""
    plan = Plan("broadcast", 3, (1, 1))
    copy = plan.data("copy", [own("i", 0)], [own("o", 0)])
    put = plan.data("ppkt", [own("i", 0)], [plan.far(0, 1, "s", 0)])
    unpack = plan.data("upkt", [own("s", 0)], [own("o", 0)])
    on = plan.data("rppkt", [own("s", 0)], [plan.far(1, 2, "s", 0)])
    plan.blocks = {0: [[copy, put]], 1: [[on, unpack]], 2: [[unpack]]}
    assert verify(built(plan, "broadcast")).messages == (1, 1, 0)


def test_switches_that_reduce_and_copy():
    """What multimem does goes by messages to and from all ranks."""
    ranks = 4
    plan = Plan("allreduce", ranks, (ranks, ranks), inplace=True)
    for rank in range(ranks):
        chunk = {"switch_channel_id": 0, "index": rank, "size": 1}
        plan.blocks[rank] = [[plan.data("glres", [chunk], [chunk]) | {"channel_type": "switch"}]]
    report = verify(built(plan, "all_reduce"))
    assert report.messages == (2 * (ranks - 1),) * ranks
    assert report.fold_order(2) == "0+1+2+3"


def test_thread_blocks_wait_for_each_other():
    """One block copies, another puts behind a semaphore, in a pipeline; a third waits at a barrier with them."""
    plan = Plan("allgather", 2, (1, 2))
    plan.semaphores = [0, 1]
    for rank in range(2):
        copy = plan.data("copy", [own("i", 0)], [own("s", 7)])
        loop = {"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}}
        first = [{"name": "sem_acquire", "semaphore_ids": [1]}, copy, {"name": "sem_release", "semaphore_ids": [0]}]
        put = plan.data("put", [own("s", 7)], [plan.far(rank, 1 - rank, "s", 3)])
        second = [{"name": "sem_acquire", "semaphore_ids": [0]}, put, plan.sync("signal", rank, 1 - rank)]
        barrier = {"name": "barrier", "barrier_id": 0, "num_threadblocks": 3}
        third = [plan.sync("wait", rank, 1 - rank), barrier]
        third.append(plan.data("copy", [own("s", 3)], [own("o", 1 - rank)]))
        third.append(plan.data("copy", [own("s", 7)], [own("o", rank)]))
        plan.blocks[rank] = [
            third,
            [loop | {"ops": second}, barrier],
            [loop | {"ops": first}, barrier],
        ]
    assert verify(built(plan, "all_gather")).messages == (1, 1)
    plan.semaphores = [0, 0]
    plan.name += "_stuck"
    with pytest.raises(ScheduleError, match=r"thread block \d, operation \d \(.*\) never gets what it waits for"):
        mscclpp.register(plan.text())


def test_a_group_of_thread_blocks_does_parts_of_one_operation():
    plan = Plan("allgather", 2, (1, 2))
    for rank in range(2):
        for part in range(2):
            group = {"tbg_info": {"tb_id": part, "tbg_size": 2}}
            ops = [
                plan.data("put", [own("i", 0)], [plan.far(rank, 1 - rank, "o", rank)], **group),
                plan.data("copy", [own("i", 0)], [own("o", rank)], **group),
            ]
            plan.blocks[rank].append(ops)
    assert verify(built(plan, "all_gather")).messages == (1, 1)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_what_is_written_is_read_again(collective):
    written = 0
    for algorithm in ALGORITHMS:
        for ranks in (2, 4, 5):
            try:
                ours = build(Spec(collective, ranks, algorithm, channels=2))
                text = mscclpp_writer.text(ours)
            except ValueError:
                continue  # it does not serve the collective, or goes by memory
            name = f"jaxring_{algorithm}_{collective}_{ranks}"
            assert mscclpp.register(text.replace(name, f"{name}_again")) == (f"{name}_again", collective)
            name += "_again"
            theirs = build_user(Spec(collective, ranks, name))
            assert verify(theirs).messages == verify(ours).messages
            assert theirs.nlanes == ours.nlanes
            written += 1
    assert written >= 3


def test_what_is_written_is_what_the_executor_reads():
    """Fields, and channels that pair up: the k-th of rank a to rank b is the k-th of b to a."""
    plan = json.loads(mscclpp_writer.text(build(Spec("all_reduce", 4, "halving_doubling", channels=3))))
    keys = {"name", "collective", "protocol", "inplace", "reuse_resources", "gpus", "buffer_alignment"}
    assert keys <= plan.keys()
    connected = [gpu["channels"][0]["connected_to"] for gpu in plan["gpus"]]
    pairs = [(a, b) for a in range(4) for b in range(a)]
    assert [connected[a].count(b) for a, b in pairs] == [connected[b].count(a) for a, b in pairs]
    assert sum(map(len, connected)) > 0
    slots = set()
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            buffers = block["remote_buffer_refs"][0]["remote_buffer_ids"]
            for op in block["ops"]:
                for ref in op.get("dst_buff", []):
                    if "buffer_id" in ref:
                        target = gpu["remote_buffers"][buffers[ref["buffer_id"]]]["rank"]
                        assert (target, ref["index"]) not in slots, "two messages in one chunk of scratch"
                        assert ref["index"] < plan["gpus"][target]["scratch_chunks"]
                        slots.add((target, ref["index"]))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)), "goes by memory"),
        (Spec("gather", 4, "direct"), r"MSCCL\+\+ has no gather"),
    ],
)
def test_what_cannot_be_written(spec, why):
    with pytest.raises(ValueError, match=why):
        mscclpp_writer.text(build(spec))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"name": "mscclpp', '"name" "mscclpp', "line 1: it is no JSON"),
        ('"reducescatter"', '"sum"', "its collective is 'sum'"),
        ('"inplace": false', '"inplace": 0', "the plan has no inplace of type bool: 0"),
        ('"id": 1, "input_chunks"', '"id": 0, "input_chunks"', "its GPUs are not numbered from 0 on"),
        ('"input_chunks": 2', '"input_chunks": 3', "its GPUs have .* chunks, not the same multiple of 2"),
        ('"name": "re"', '"name": "rex"', "rank 0, thread block 0, operation 4: our schedules have no operation 'rex'"),
        ('"channel_ids": [0]}, {"name": "wait"', '"channel_ids": [1]}, {"name": "wait"', "no memory channel 1"),
        ('"buffer_id": 2', '"buffer_id": 9', "operation 0: there is no memory buffer 9 of its thread block"),
        ('"index": 1, "size": 1}], "dst', '"index": -1, "size": 1}], "dst', "there are no 1 chunks from chunk -1 on"),
        ('"index": 1, "size": 1}], "dst', '"index": 1, "size": 2}], "dst', "the buffers of put have different sizes"),
        ('"dst_buff": [{"buffer_id"', '"dst_buff": [], "x": [{"buffer_id"', "put has 1 sources and 0 targets"),
        ('{"type": "i", "index": 1', '{"type": "x", "index": 1', "a buffer is 'x' of ranks"),
        ('"name": "signal"', '"name": "nop"', "never gets what it waits for"),
        ('"name": "put"', '"name": "nop"', r"rank 1 reads s\[0\] before anything is written there"),
        ('"connected_to": [1]', '"connected_to": [7]', "a channel is connected to 7, which is no rank"),
    ],
)
def test_what_cannot_be_read(old, new, why):
    text = reduce_scatter_by_scratch(2).text()
    assert old in text
    with pytest.raises(ValueError, match=why):
        mscclpp.register(text.replace(old, new))


def test_a_wrong_plan_is_found_by_the_verifier():
    plan = reduce_scatter_by_scratch(3)
    plan.blocks[0][0][0]["src_buff"][0]["index"] = 0
    with pytest.raises(ScheduleError, match="rank 1"):
        built(plan, "reduce_scatter")


def test_two_chunks_in_memory_cannot_be_reduced():
    plan = Plan("allreduce", 2, (2, 2))
    for rank in range(2):
        plan.blocks[rank] = [[plan.data("re", [own("i", 0), own("i", 1)], [own("o", 0)])]]
    with pytest.raises(
        ScheduleError, match=r"rank 0 reduces i\[0\] and i\[1\], of which more than one lie in its memory"
    ):
        mscclpp.register(plan.text())


def all_reduce_in_parts(ranks: int, parts: int, chain: bool = False) -> Plan:
    """Every rank puts its chunk into the scratch of all others. A thread block reduces a part of what has come, and
    the first one then reduces the parts; with ``chain`` each part is reduced into what the parts before have given."""
    plan = Plan("allreduce", ranks, (1, 1))
    for rank in range(ranks):
        peers = plan.peers(rank)
        sends = [plan.data("put", [own("i", 0)], [plan.far(rank, peer, "s", rank)]) for peer in peers]
        blocks = [[*sends, plan.sync("signal", rank, *peers), plan.sync("wait", rank, *peers)]]
        blocks += [[] for _ in range(parts - 1)]
        for number, block in enumerate(blocks):
            block.append({"name": "barrier", "barrier_id": 0, "num_threadblocks": parts})
            mine = [own("s", peer) for peer in peers[number::parts]] + ([own("i", 0)] if number == parts - 1 else [])
            block.append(plan.data("re", mine, [own("s", ranks + number)]))
            block.append({"name": "barrier", "barrier_id": 1, "num_threadblocks": parts})
        made = [own("s", ranks + number) for number in range(parts)]
        if chain:
            for number in range(1, parts - 1):
                blocks[0].append(plan.data("re", [made[0], made[number]], [made[0]]))
            made = [made[0], made[-1]]
        blocks[0].append(plan.data("re", made, [own("o", 0)]))
        plan.blocks[rank] = blocks
    return plan


@pytest.mark.parametrize(("ranks", "parts", "chain"), [(5, 2, False), (7, 3, False), (7, 3, True)])
def test_reductions_of_reductions_are_one(ranks, parts, chain):
    schedule = built(all_reduce_in_parts(ranks, parts, chain), "all_reduce")
    steps = [step for lane in schedule.lanes(0) for step in lane]
    assert sum(step.kind is Kind.REDUCE for step in steps) == 1


def test_a_part_that_is_read_twice_stays():
    plan = all_reduce_in_parts(5, 2)
    plan.blocks[2][0].insert(-1, plan.data("copy", [own("s", 5)], [own("s", 9)]))
    with pytest.raises(ScheduleError, match=r"rank 2 reduces s\[5\] and .* and i\[0\], of which more than one lie"):
        built(plan, "all_reduce")


_broken = itertools.count()
BROKEN = [reduce_scatter_by_scratch(2).text(), all_reduce_by_packets(2, 2).text()]
WRONG = (None, -1, 1 << 70, 3.5, True, "x", "i", "", [], {}, [None], [[]], {"a": 1})


def parts(value, path=()):
    """The paths of all values in a plan."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from parts(each, (*path, key))


@given(st.data())
@settings(deadline=None)
def test_what_is_broken_anywhere_is_said(data):
    """A value that is missing or another one, wherever it stands, is read or refused with a ValueError."""
    plan = json.loads(data.draw(st.sampled_from(BROKEN)))
    *above, last = data.draw(st.sampled_from(list(parts(plan))))
    at = plan
    for key in above:
        at = at[key]
    if data.draw(st.booleans()):
        del at[last]
    else:
        at[last] = data.draw(st.sampled_from(WRONG))
    if isinstance(plan.get("name"), str):
        plan["name"] = f"broken_{next(_broken)}"
    with contextlib.suppress(ValueError):
        mscclpp.register(json.dumps(plan))
