"""What the CUDA planner decides before it touches a GPU: nodes, algorithms, protocols, lanes."""

from __future__ import annotations

import pytest

from jaxring.errors import JoinError
from jaxring.plan import cuda_tuner
from jaxring.runtime.cuda_cards import Card, nodes_of


def card(gpus, reaches):
    return Card(1, 3, 4, gpus, reaches, 132)


def test_a_card_survives_its_journey():
    mine = card({0: "a", 7: "b"}, {"a": ("a", "b"), "b": ("b",)})
    assert Card.from_json(mine.to_json()) == mine
    with pytest.raises(ValueError, match="lacks"):
        Card.from_json(b"{}")


def test_ranks_that_reach_each_other_are_one_node():
    full = {"a": ("a", "b"), "b": ("a", "b")}
    cards = {0: card({0: "a"}, full), 1: card({1: "b"}, full)}
    assert nodes_of([0, 1], [0, 1], cards, ["h", "h"]) == [0, 0]
    assert nodes_of([0, 1], [0, 1], cards, ["h", "i"]) == [0, 1]


def test_processes_on_one_gpu_are_one_node():
    cards = {p: card({p: "a"}, {"a": ("a",)}) for p in range(3)}
    assert nodes_of([0, 1, 2], [0, 1, 2], cards, ["h"] * 3) == [0, 0, 0]


def test_access_must_be_mutual():
    cards = {0: card({0: "a"}, {"a": ("a", "b"), "b": ("b",)}), 1: card({1: "b"}, {"b": ("b",), "a": ("a",)})}
    assert nodes_of([0, 1], [0, 1], cards, ["h", "h"]) == [0, 1]


def test_a_process_that_does_not_see_the_others_gpu():
    cards = {0: card({0: "a"}, {"a": ("a",)}), 1: card({1: "b"}, {"b": ("b",)})}
    assert nodes_of([0, 1], [0, 1], cards, ["h", "h"]) == [0, 1]


def test_an_unknown_device_is_an_error():
    with pytest.raises(JoinError, match="device 5"):
        nodes_of([0, 5], [0, 0], {0: card({0: "a"}, {"a": ("a",)})}, ["h", "h"])


def test_lanes_grow_with_size_up_to_the_limit():
    assert [cuda_tuner.lanes_for(n, 16) for n in (1, 128 * 1024, 1 << 20, 1 << 30)] == [1, 2, 16, 16]
    assert cuda_tuner.lanes_for(1 << 30, 5) == 4


@pytest.mark.parametrize("nodes", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
@pytest.mark.parametrize("nbytes", [4, 1 << 20, 1 << 28])
def test_every_collective_finds_a_way_within_the_lanes(nodes, collective, nbytes):
    from jaxring.plan.algorithms import build
    from jaxring.plan.schedule import Spec

    choice = cuda_tuner.choose(collective, nodes, nbytes, "float32", 8)
    schedule = build(Spec(collective, 4, choice.algorithm, channels=choice.channels, placement=nodes))
    assert 1 <= schedule.nlanes <= 8
    assert choice.protocol == "memory" if len(set(nodes)) == 1 else choice.protocol in ("simple", "ll")


def test_what_is_asked_for_is_done_or_refused():
    assert cuda_tuner.choose("all_reduce", (0, 0), 64, "float32", 8, "ring", "ll128").protocol == "ll128"
    with pytest.raises(ValueError, match="ll128 needs one node"):
        cuda_tuner.choose("all_reduce", (0, 1), 64, "float32", 8, "ring", "ll128")
    with pytest.raises(ValueError, match="does not serve"):
        cuda_tuner.choose("all_to_all", (0, 0), 64, "float32", 8, "tree")
    with pytest.raises(ValueError, match="no protocol 'rdma'"):
        cuda_tuner.choose("all_reduce", (0, 0), 64, "float32", 8, None, "rdma")
