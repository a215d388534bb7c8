"""The search for a ring by few measurements: how many there are, and how good it is where all costs are known."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.topology.search import measured, tour


class Network:
    """Costs of hosts, which count what is asked."""

    def __init__(self, costs):
        self.costs, self.asked = np.asarray(costs, dtype=float), []

    def __call__(self, pairs):
        self.asked += pairs
        assert all(a < b for a, b in pairs)
        return {(a, b): (float(self.costs[a, b]), float(self.costs[b, a])) for a, b in pairs}


def racks(count, size, seed):
    """Hosts in racks, in no order: near ones cost 1, others 10, with 3% of noise."""
    rng = np.random.default_rng(seed)
    rack = rng.permutation(count) // size
    return np.where(rack[:, None] == rack[None, :], 1.0, 10.0) * rng.uniform(1.0, 1.03, (count, count))


@pytest.mark.parametrize("count", [2, 3, 5, 16, 33, 64])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(5)
def test_every_hop_is_measured_and_the_pairs_are_n_log_n(count, seed):
    costs = np.random.default_rng(seed).uniform(1, 100, (count, count))
    network = Network(costs)
    found = measured.find(count, network)
    assert sorted(found.order) == list(range(count))
    assert found.order[0] == 0
    assert len(set(network.asked)) == len(network.asked) == found.pairs
    assert found.pairs <= 3 * count * math.ceil(math.log2(count)) + count
    hops = itertools.pairwise([*found.order, 0])
    assert {(min(hop), max(hop)) for hop in hops} <= set(network.asked)
    assert found.cost == pytest.approx(tour.length(costs, list(found.order)))
    assert found.cost <= found.before == pytest.approx(tour.length(costs, list(range(count))))


@pytest.mark.parametrize(("count", "size"), [(16, 4), (64, 8), (64, 32), (128, 8)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(5)
def test_racks_that_nobody_has_named_are_found(count, size, seed):
    costs = racks(count, size, seed)
    network = Network(costs)
    order = measured.find(count, network).order
    crossings = sum(costs[hop] >= 10 for hop in itertools.pairwise([*order, 0]))
    assert crossings == count // size  # no ring has fewer
    if count == 128:  # docs/concepts/tuning.md
        assert len(network.asked) <= 0.27 * math.comb(count, 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sampled(3)
def test_of_small_racks_most_are_found(seed):
    costs = racks(128, 4, seed)
    order = measured.find(128, Network(costs)).order
    assert sum(costs[hop] >= 10 for hop in itertools.pairwise([*order, 0])) < 2 * 128 // 4


@settings(deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_with_few_hosts_no_ring_is_cheaper(count, chance):
    costs = np.array([[chance.uniform(1, 100) for _ in range(count)] for _ in range(count)])
    every = {pair: (costs[pair], costs[pair[::-1]]) for pair in itertools.combinations(range(count), 2)}
    found = measured.find(count, lambda pairs: {pair: every[pair] for pair in pairs})
    best = min(tour.length(costs, [0, *rest]) for rest in itertools.permutations(range(1, count)))
    if found.kept:
        assert best >= 0.9 * found.cost - 1e-9
    elif found.pairs == len(every):
        assert found.cost == pytest.approx(best)


def test_hosts_that_are_all_alike_keep_their_order():
    costs = np.random.default_rng(0).uniform(1.0, 1.05, (12, 12))
    assert measured.find(12, Network(costs)).kept


def test_a_hop_that_is_slow_one_way_is_taken_the_other_way():
    costs = np.ones((3, 3))
    costs[0, 1] = costs[1, 2] = costs[2, 0] = 50
    assert measured.find(3, Network(costs)).order == (0, 2, 1)


@pytest.mark.parametrize("count", [2, 5, 12])
def test_a_group_of_pairs_has_each_host_once(count):
    pairs = list(itertools.combinations(range(count), 2))
    random.Random(0).shuffle(pairs)
    groups = measured.matchings(pairs)
    assert sorted(itertools.chain(*groups)) == sorted(pairs)
    for group in groups:
        hosts = list(itertools.chain(*group))
        assert len(hosts) == len(set(hosts))
    assert len(groups) <= 2 * count - 1
