"""A collective made several times, one after another, and the token buckets of shaped links."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.plan.schedule import Spec
from jaxring.simulate.clusters import load
from jaxring.simulate.model import Model
from jaxring.simulate.run import simulate
from tests.simulate.support import LATENCY, SPEED, mesh, run

MODEL = Model(send_overhead=0.75, recv_overhead=1.25, launch=2.0, tile_bytes=8192)
BURST = 10_000.0
ETHERNET = load("ethernet-1g")
SHAPED = dataclasses.replace(ETHERNET, burst=BURST)


def rounds(spec, nbytes, network, times, model=MODEL):
    played, _ = run(spec, nbytes, network, model, times=times)
    return played


@pytest.mark.parametrize("tiles", [1, 3])
def test_where_all_ranks_end_together_each_round_takes_as_long(tiles):
    spec, nbytes = Spec("all_reduce", 4, "ring"), 4 * 8192 * tiles
    one, _ = run(spec, nbytes, mesh(4), MODEL)
    played = rounds(spec, nbytes, mesh(4), 5)
    assert played.rounds == [pytest.approx(one.time_us * number) for number in range(1, 6)]
    assert played.round_us == pytest.approx(one.time_us)
    assert played.messages == 5 * one.messages
    assert one.rounds == ()


def test_ranks_that_end_early_begin_the_next_one():
    spec = Spec("broadcast", 8, "ring")
    one, _ = run(spec, 8192, mesh(8), MODEL)
    played = rounds(spec, 8192, mesh(8), 9)
    assert played.rounds[0] == one.time_us
    assert played.round_us < 0.5 * one.time_us


def test_ranks_that_share_memory_begin_together():
    for collective, algorithm in (("all_reduce", "hier_ring"), ("all_to_all", "pxn"), ("all_to_all", "multileader")):
        cluster = dataclasses.replace(load("hgx-h100"), ranks=2, domain=2, ports=2)
        once, many = (simulate(cluster, 2, collective, 1 << 16, algorithm, times=times) for times in (1, 6))
        assert many.time_us == pytest.approx(once.time_us, rel=0.1)
        assert many.messages == 6 * once.messages
        assert many.bus_gbs == pytest.approx(once.bus_gbs, rel=0.1)


def test_a_bucket_lets_through_at_once_what_it_has_gained():
    nbytes = 4000
    network, limited = mesh(2), mesh(2)
    limited.bursts = {0: BURST}
    model = Model(launch=1.0)
    once = rounds(Spec("permute", 2, "direct", perm=((0, 1),)), nbytes, network, 1, model)
    assert once.time_us == 1.0 + nbytes / (SPEED * 1000) + LATENCY
    played = rounds(Spec("permute", 2, "direct", perm=((0, 1),)), nbytes, limited, 12, model)
    # The first one takes tokens only. They are used up soon, and from then on a message waits for what the rate brings.
    assert played.rounds[0] == 1.0 + LATENCY
    assert played.round_us == pytest.approx(nbytes / (SPEED * 1000))


def test_a_loop_empties_the_buckets_of_a_cluster():
    small = 4096
    alone = simulate(SHAPED, 4, "all_reduce", small, "ring")
    plain = simulate(ETHERNET, 4, "all_reduce", small, "ring")
    assert alone.time_us < plain.time_us
    looped = simulate(SHAPED, 4, "all_reduce", 1 << 20, "ring", times=8)
    leaves = 2 * 3 / 4 * (1 << 20) / (SHAPED.port * 1000)
    assert looped.time_us == pytest.approx(leaves, rel=0.01)
    assert simulate(ETHERNET, 4, "all_reduce", 1 << 20, "ring", times=8).time_us > 1.02 * leaves


def test_less_than_once_is_refused():
    with pytest.raises(ValueError, match="a time at least, not 2, 64 and 0"):
        simulate(ETHERNET, 2, "all_reduce", 64, "ring", times=0)
