"""Schedules as data: tables, peers, printing."""

from __future__ import annotations

import numpy as np
import pytest

from jaxring.plan.algorithms import build
from jaxring.plan.schedule import MEMORY_PEER, STEP_DTYPE, Buffer, Chunk, Flag, Kind, Peer, Spec, Step
from jaxring.plan.show import show

RING = """\
all_reduce · ring · 4 ranks · 1 lanes · 4 pieces · 6 messages per rank, 24 chunks moved

lane 0
step  rank 0                                        rank 1                                        \
rank 2                                        rank 3
0     in[0] → send 1                                in[1] → send 2                                \
in[2] → send 3                                in[3] → send 0
1     recv 3 · fold in[3] → send 1                  recv 0 · fold in[0] → send 2                  \
recv 1 · fold in[1] → send 3                  recv 2 · fold in[2] → send 0
2     recv 3 · fold in[2] → send 1                  recv 0 · fold in[3] → send 2                  \
recv 1 · fold in[0] → send 3                  recv 2 · fold in[1] → send 0
3     recv 3 · fold in[1] → out[1], send 1 (final)  recv 0 · fold in[2] → out[2], send 2 (final)  \
recv 1 · fold in[3] → out[3], send 3 (final)  recv 2 · fold in[0] → out[0], send 0 (final)
4     recv 3 → out[0], send 1                       recv 0 → out[1], send 2                       \
recv 1 → out[2], send 3                       recv 2 → out[3], send 0
5     recv 3 → out[3], send 1                       recv 0 → out[0], send 2                       \
recv 1 → out[1], send 3                       recv 2 → out[2], send 0
6     recv 3 → out[2]                               recv 0 → out[3]                               \
recv 1 → out[0]                               recv 2 → out[1]"""


def test_ring_prints_as_a_table() -> None:
    assert show(build(Spec("all_reduce", 4, "ring"))) == RING


def test_large_schedules_are_cut() -> None:
    text = show(build(Spec("all_reduce", 200, "ring", channels=12)))
    assert "…  rank 199" in text
    assert "… and 359 more steps" in text
    assert text.endswith("… and 4 more lanes")
    assert "out[0] and of 1..63" in show(build(Spec("all_reduce", 64, "direct", placement=(0,) * 64)))
    assert "zero out[3]" in show(build(Spec("gather", 4, "direct")))


def test_the_table_holds_what_the_lanes_say() -> None:
    schedule = build(Spec("all_reduce", 6, "hier_tree", placement=(0, 0, 0, 1, 2, 2)))
    for rank in range(6):
        table = schedule.table(rank)
        assert table.steps.dtype == STEP_DTYPE
        assert len(table.lane_begin) == schedule.nlanes + 1
        for index, lane in enumerate(schedule.lanes(rank)):
            records = table.steps[table.lane_begin[index] : table.lane_begin[index + 1]]
            assert [_step(record, table.peers) for record in records] == list(lane)


def _step(record: np.void, peers: np.ndarray) -> Step:
    def listed(begin: int, count: int) -> tuple[Peer, ...]:
        return tuple(Peer(int(p) & (MEMORY_PEER - 1), bool(p & MEMORY_PEER)) for p in peers[begin : begin + count])

    def chunk(name: str) -> Chunk | None:
        buffer = Buffer(int(record[f"{name}_buffer"]))
        return Chunk(buffer, int(record[f"{name}_chunk"])) if buffer else None

    return Step(
        Kind(int(record["kind"])),
        chunk("src"),
        chunk("dst"),
        listed(int(record["recv_begin"]), int(record["recv_count"])),
        listed(int(record["send_begin"]), int(record["send_count"])),
        Flag(int(record["flags"])),
    )


def test_lanes_are_generated_per_rank() -> None:
    from dataclasses import replace

    asked = []
    schedule = build(Spec("all_reduce", 8, "ring"))

    def lanes(rank: int) -> object:
        asked.append(rank)
        return schedule.lanes_fn(rank)

    watched = replace(schedule, lanes_fn=lanes)
    watched.table(3)
    assert asked == [3]
    with pytest.raises(IndexError, match="rank 8"):
        watched.lanes(8)


def test_the_memory_of_a_lent_buffer_is_used() -> None:
    placement = (0, 0, 1, 1)
    reduce = build(Spec("reduce", 4, "direct", root=0, placement=placement))
    # Rank 1 only fills its own output, but rank 0 reads its input.
    assert [reduce.uses_memory(rank) for rank in range(4)] == [True, True, False, False]
    assert reduce.message_peers(3) == (frozenset({0}), frozenset())
    assert not build(Spec("all_reduce", 4, "ring", placement=(0,) * 4)).uses_memory(0)


def test_specs_are_keys() -> None:
    assert Spec("all_reduce", 3, "ring") == Spec("all_reduce", 3, "ring", placement=(0, 1, 2))
    assert len({Spec("all_reduce", 3, "ring"), Spec("all_reduce", 3, "ring", channels=2)}) == 2
