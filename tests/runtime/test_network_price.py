"""Which network the tuner prices: RDMA only where every process has a kind of port that all have."""

from __future__ import annotations

import types

import pytest

from jaxring.runtime.placement import RankPlace
from jaxring.runtime.planner import _network


@pytest.mark.parametrize(
    ("kinds", "network"),
    [
        ([("RoCE v2 IPv4", "iWARP"), ("iWARP",)], "rdma"),
        ([("RoCE v2 IPv4",), ("iWARP",)], "tcp"),
        ([("RoCE v2 IPv4",), ()], "tcp"),
        ([("A", "B"), ("B", "C"), ("C", "A")], "tcp"),
    ],
)
def test_the_network_of_a_group(kinds, network):
    world = types.SimpleNamespace(info=lambda process: types.SimpleNamespace(rdma=kinds[process]))
    assert _network([RankPlace(process=p, device=p) for p in range(len(kinds))], world) == network


def test_a_group_of_one_process_has_none():
    assert _network([RankPlace(process=0, device=0)], None) == "tcp"
