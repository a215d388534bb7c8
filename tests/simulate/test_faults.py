"""Faults are drawn from a seed, and cost what they must."""

from __future__ import annotations

import pytest

from jaxring.simulate.clusters import load
from jaxring.simulate.deadlock import Deadlock
from jaxring.simulate.faults import Faults
from jaxring.simulate.run import simulate

CLUSTER = load("ethernet-25g")


def ring(faults: Faults | None, hosts: int = 4, nbytes: int = 1 << 20):
    return simulate(CLUSTER, hosts, "all_reduce", nbytes, "ring", faults=faults)


def test_a_seed_repeats_a_run():
    faults = Faults(seed=3, jitter=20.0, loss=0.1, timeout=200.0)
    assert ring(faults).time_us == ring(faults).time_us > ring(None).time_us
    assert ring(Faults(seed=4, jitter=20.0, loss=0.1, timeout=200.0)).time_us != ring(faults).time_us


def test_no_faults_change_nothing():
    assert ring(Faults()).time_us == ring(None).time_us


def test_a_straggler_and_a_late_rank():
    assert ring(Faults(stragglers=((2, 10.0),))).time_us > ring(None).time_us
    assert ring(Faults(late=((1, 5000.0),))).time_us > 5000.0


def test_a_slow_link_and_one_that_fails():
    slow = Faults(links=(("h0n0", "leaf0.0", 0.0, 0.5),))
    assert ring(slow).time_us > 1.1 * ring(None).time_us
    with pytest.raises(Deadlock, match="waits for"):
        ring(Faults(links=(("h0n0", "leaf0.0", 50.0, 0.0),)))
    with pytest.raises(ValueError, match="no link leads from 'h0n0' to 'leaf9'"):
        ring(Faults(links=(("h0n0", "leaf9", 0.0, 0.5),)))


def test_a_dead_rank_is_named():
    with pytest.raises(Deadlock, match=r"rank 2, lane 0, step [0-9]+ has died"):
        ring(Faults(deaths=((2, 100.0),)))


@pytest.mark.parametrize(
    "wrong", [{"loss": 1.0}, {"jitter": -1.0}, {"stragglers": ((0, 0.0),)}, {"deaths": ((0, -1.0),)}]
)
def test_impossible_faults(wrong):
    with pytest.raises(ValueError):
        Faults(**wrong)
