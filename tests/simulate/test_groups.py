"""Collectives among groups of the ranks, all at once."""

from __future__ import annotations

import pytest

from jaxring.simulate.clusters import load
from jaxring.simulate.run import simulate

P4D = load("p4d")  # 8 GPUs and 4 network ports a host
PAIRS = tuple((rank, rank + 8) for rank in range(8))
NBYTES = 16 << 20


def took(groups, collective="all_reduce", algorithm="ring", hosts=2, **given) -> float:
    return simulate(P4D, hosts, collective, NBYTES, algorithm, channels=1, groups=groups, **given).time_us


def test_one_group_of_all_ranks_is_no_group():
    assert took((tuple(range(16)),)) == took(())


def test_a_group_of_one_host_is_that_host():
    """Wherever in the cluster it is, and beside the same on the other host."""
    one = took((), algorithm="hier_ring", hosts=1)
    hosts = tuple(range(8)), tuple(range(8, 16))
    assert took(hosts[1:], algorithm="hier_ring") == pytest.approx(one)
    assert took(hosts, algorithm="hier_ring") == pytest.approx(one)


def test_groups_share_what_they_have_in_common():
    """Two ranks have a port together, so eight pairs take nearly twice as long as one; four with their own do not."""
    alone = took(PAIRS[:1])
    assert took(PAIRS[:4]) == pytest.approx(alone)
    assert took(PAIRS) > 1.7 * alone


def test_a_symmetry_of_groups_is_used():
    """All hosts share their first switches here, and one stands for all of them; the time is the same."""
    groups = tuple((rank, rank + 8 * 32) for rank in range(8 * 32))
    run = simulate(P4D, 64, "all_reduce", 1 << 16, "ring", channels=1, groups=groups)
    every = simulate(P4D, 64, "all_reduce", 1 << 16, "ring", channels=1, groups=groups, symmetric=False)
    assert "stand for all" in run.how
    assert run.time_us == pytest.approx(every.time_us)
    assert (run.ranks, every.ranks) == (2, 2)
    assert run.messages * 64 == every.messages


def test_a_message_between_two_ranks():
    """Over two ports it takes what the wire takes, and the way."""
    message = took(PAIRS[:1], "permute", "direct", perm=((0, 1),))
    wire = NBYTES / (P4D.port * 1000)
    assert wire < message < 1.2 * wire + 100


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (((0, 1), (2,)), "groups have the same number of ranks"),
        (((0, 16),), r"group \(0, 16\) names rank 16, and there are the ranks 0..15"),
        (((0, 1), (1, 2)), "groups name rank 1 twice"),
    ],
)
def test_what_are_no_groups(groups, why):
    with pytest.raises(ValueError, match=why):
        took(groups)
