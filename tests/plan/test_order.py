"""Rings visit memory domains in the order of the spec; nothing else depends on it."""

from __future__ import annotations

import random

import pytest

from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.schedule import Spec
from jaxring.plan.verify import verify
from jaxring.runtime import schedules
from jaxring.runtime.plan_spec import PlanSpec

PLACEMENTS = [(0, 1, 2, 3, 4), (0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 1, 2, 2), (0, 1, 2, 0, 1, 2), (7, 3, 5)]
ORDERED = sorted(name for name, algorithm in ALGORITHMS.items() if algorithm.ordered)


def hops(schedule, placement):
    """Pairs of different domains between which messages go."""
    return {
        (placement[rank], placement[peer])
        for rank in range(len(placement))
        for peer in schedule.message_peers(rank)[0]
        if placement[rank] != placement[peer]
    }


def test_these_have_an_order():
    assert ORDERED == ["hier_ring", "ring"]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("collective", sorted(ALGORITHMS["ring"].collectives))
@pytest.mark.parametrize("algorithm", ORDERED)
def test_rings_take_the_order_and_are_right(algorithm, collective, placement):
    for seed in range(4):
        order = tuple(random.Random(seed).sample(sorted(set(placement)), len(set(placement))))
        for root in {0, len(placement) - 1}:
            for channels in (1, 2):
                spec = Spec(collective, len(placement), algorithm, root, channels, placement, order=order)
                schedule = build(spec)
                verify(schedule)
                assert hops(schedule, placement) <= set(zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(ORDERED)))
def test_others_are_as_they_were(algorithm):
    placement = (0, 0, 1, 1, 2, 2, 3, 3)
    for collective in ALGORITHMS[algorithm].collectives:
        perm = ((0, 3), (3, 0)) if collective == "permute" else ()
        plain = Spec(collective, 8, algorithm, placement=placement, perm=perm)
        ordered = Spec(collective, 8, algorithm, placement=placement, perm=perm, order=(2, 0, 3, 1))
        for rank in range(8):
            assert schedules.table(build(plain), rank) == schedules.table(build(ordered), rank)


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 1), (0, 1, 3)])
def test_an_order_names_each_domain_once(order):
    with pytest.raises(ValueError, match="does not name each memory domain"):
        Spec("all_reduce", 3, "ring", order=order)


def test_a_saved_plan_keeps_its_order_and_older_ones_have_none():
    spec = PlanSpec(
        "all_reduce", "both", "ring", "simple", 1, (0, 1, 2), 0, (), "float32", "sum", 1024, order=(0, 2, 1)
    )
    saved = spec.to_json(["a", "b", "c"])
    assert PlanSpec.from_json(saved.encode()) == (spec, ["a", "b", "c"])
    older = saved.replace(',"order":[0,2,1]', "")
    assert older != saved
    assert PlanSpec.from_json(older.encode())[0].order == ()
    with pytest.raises(ValueError, match="order is not an integer from 0 to 2"):
        PlanSpec.from_json(saved.replace("[0,2,1]", "[0,2,3]").encode())
