"""Tours against all permutations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jaxring.topology.search import tour


@pytest.mark.parametrize("count", range(2, 8))
def test_no_order_is_cheaper(count):
    costs = np.random.default_rng(count).uniform(size=(count, count))
    found, cost, exact = tour.cheapest(costs)
    assert exact
    assert sorted(found) == list(range(count))
    least = min(tour.length(costs, [0, *rest]) for rest in itertools.permutations(range(1, count)))
    assert cost == pytest.approx(least)


def test_a_tour_of_many_places_says_that_it_may_not_be_the_cheapest():
    """Places on a circle that are listed in no order."""
    count = 30
    place = np.random.default_rng(1).permutation(count)
    costs = np.abs(place[:, None] - place[None, :]).astype(float)
    found, cost, exact = tour.cheapest(costs)
    assert not exact
    assert found[0] == 0
    assert sorted(found) == list(range(count))
    assert cost == tour.length(costs, found)
    assert cost == 2 * (count - 1)  # there and back, which is the least
