"""One rank of each class gives the same time as all ranks, wherever both can be played."""

from __future__ import annotations

import dataclasses

import pytest

from jaxring.simulate.clusters import load
from jaxring.simulate.run import simulate

SMALL = dataclasses.replace(load("hgx-h100"), ranks=4, ports=4, domain=4, channels=1, leaf=2)


# Eight hosts at four first switches, and at one, where all hosts are alike.
@pytest.mark.parametrize(("leaf", "over"), [(2, 1.0), (2, 3.0), (8, 1.0)])
@pytest.mark.parametrize("rails", [True, False])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "hier_ring"),
        ("all_reduce", "hier_direct"),
        ("all_reduce", "halving_doubling"),
        ("all_gather", "hier_ring"),
        ("all_gather", "pat"),
        ("reduce_scatter", "pat"),
        ("reduce_scatter", "hier_direct"),
        ("all_to_all", "pxn"),
        ("all_to_all", "multileader"),
        ("all_to_all", "direct"),
    ],
)
@pytest.mark.sampled(7)
def test_equal_to_all_ranks(collective, algorithm, rails, leaf, over):
    cluster = dataclasses.replace(SMALL, rails=rails, leaf=leaf, oversubscription=over)
    given = (cluster, 8, collective, 1 << 20, algorithm)
    try:
        one = simulate(*given, symmetric=True)
    except ValueError:
        # A ring over ranks or hosts turns; it takes another way where its hosts sit at switches of their own.
        pytest.fail(f"{algorithm} {collective} has lost its symmetry")
    every = simulate(*given, symmetric=False)
    assert "of 32 ranks stand for all" in one.how
    assert one.time_us == pytest.approx(every.time_us, rel=1e-9)
    for kind, (_, most) in every.used.items():
        assert one.used[kind][1] == pytest.approx(most, rel=1e-9)
    assert one.events < every.events


def test_a_tree_has_none():
    with pytest.raises(ValueError, match="no symmetry"):
        simulate(SMALL, 8, "all_reduce", 1 << 20, "tree", symmetric=True)
    assert simulate(SMALL, 8, "all_reduce", 1 << 20, "hier_tree").how == "every rank is played"
