"""The simulator equals closed forms of LogGP, to the last bit."""

from __future__ import annotations

import itertools

import pytest

from jaxring.plan.schedule import Spec
from jaxring.simulate.model import Model
from tests.simulate.support import LATENCY, SPEED, mesh, run, star

O_SEND, O_RECV = 0.75, 1.25
MODEL = Model(send_overhead=O_SEND, recv_overhead=O_RECV)


def wire(nbytes: int) -> float:
    """k * G + L."""
    return nbytes / (SPEED * 1000) + LATENCY


@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
@pytest.mark.parametrize("network", [mesh, star])
def test_ring_all_reduce(ranks, tiles, network):
    chunk = 8192
    model = Model(send_overhead=O_SEND, recv_overhead=O_RECV, tile_bytes=chunk)
    played, _ = run(Spec("all_reduce", ranks, "ring"), chunk * ranks * tiles, network(ranks), model)
    # 2(n-1) messages follow each other; all ranks begin the next tile together.
    messages = 2 * (ranks - 1)
    assert played.time_us == tiles * messages * (O_SEND + wire(chunk) + O_RECV)
    assert played.messages == messages * ranks * tiles


@pytest.mark.parametrize("ranks", [2, 3, 6, 16])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_ring_halves(ranks, collective):
    chunk = 4096
    nbytes = chunk if collective == "all_gather" else chunk * ranks
    played, _ = run(Spec(collective, ranks, "ring"), nbytes, mesh(ranks), MODEL)
    assert played.time_us == (ranks - 1) * (O_SEND + wire(chunk) + O_RECV)


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_tree_all_reduce(depth):
    """2**depth ranks. Each tree has a root with one child, below which it is complete and of height depth - 1."""
    ranks, chunk = 2**depth, 4096
    played, _ = run(Spec("all_reduce", ranks, "tree"), 2 * chunk, mesh(ranks), MODEL)
    hop, inner = wire(chunk), depth - 1
    up = O_SEND + inner * (hop + 2 * O_RECV + O_SEND) + hop + O_RECV
    # A vertex sends to one child after the other: the last leaf is reached through second children alone.
    down = O_SEND + hop + inner * (O_RECV + 2 * O_SEND + hop) + O_RECV
    assert played.time_us == up + down


def test_gap_between_messages_of_a_port():
    """Direct all-gather: each rank's messages leave by one port, no closer than g, and no closer than k * G."""
    ranks, chunk = 5, 1024
    for gap in (0.5, 8.0):
        model = Model(send_overhead=O_SEND, recv_overhead=O_RECV, gap=gap)
        played, _ = run(Spec("all_gather", ranks, "direct"), chunk, star(ranks), model)
        apart = max(O_SEND, gap, chunk / (SPEED * 1000))
        assert played.time_us == O_SEND + (ranks - 2) * apart + wire(chunk) + O_RECV


def test_one_processor_makes_lanes_take_turns():
    chunk = 1024
    for channels, one, busy in ((2, False, 1), (2, True, 2)):
        model = Model(send_overhead=8.0, recv_overhead=0.0, one_processor=one, serial=False)
        spec = Spec("broadcast", 2, "direct", channels=channels)
        played, _ = run(spec, channels * chunk, mesh(2, speed=1024.0), model)
        assert played.time_us == pytest.approx(busy * 8.0 + chunk / 1024e3 + LATENCY, abs=1e-2)


def test_critical_path_covers_the_run():
    played, record = run(Spec("all_reduce", 8, "tree"), 1 << 16, mesh(8), MODEL, recorded=True)
    path = record.critical_path()
    assert path[0].begin == 0
    assert path[-1].end == played.time_us
    for before, after in itertools.pairwise(path):
        assert before.end == pytest.approx(after.begin)
    assert {piece.kind for piece in path} == {"step", "wire", "latency"}


def test_a_connection_without_slots_holds_its_sender():
    """A chain with one slot: the sender waits until the receiver has taken its message and said so."""
    chunk, tiles = 1024, 4
    model = Model(recv_overhead=50.0, slots=1, tile_bytes=chunk)
    played, record = run(Spec("broadcast", 2, "ring"), chunk * tiles, mesh(2), model, recorded=True)
    hop = wire(chunk)
    assert played.time_us == tiles * (hop + 50.0) + (tiles - 1) * LATENCY
    assert record.critical_path()[0].begin == 0
