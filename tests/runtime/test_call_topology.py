"""What a choice knows of the processes of a group: hosts, interfaces, processors, and the network that all have."""

from __future__ import annotations

import types

import pytest

from jaxring.runtime.call_topology import of_ranks


def world(*infos):
    """Processes that have published this of themselves; the rest is alike in all of them."""
    alike = {"rdma": (), "host_id": "one", "interfaces": lambda: 1, "processors": "1", "profile": "0"}
    made = [types.SimpleNamespace(**(alike | info)) for info in infos]
    return types.SimpleNamespace(info=lambda process: made[process])


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
    found = of_ranks(range(len(kinds)), world(*({"rdma": each} for each in kinds)))
    assert found.network == network


def test_processes_of_one_host_share_its_processors():
    found = of_ranks([0, 0, 1], world({"processors": "3"}, {"processors": "6"}))
    assert found[:4] == ((0, 0, 0), 1, 3, "tcp")


def test_hosts_are_numbered_by_rank_and_the_fewest_interfaces_count():
    infos = [{"host_id": "b"}, {"host_id": "a", "interfaces": lambda: 2}, {"host_id": "b", "interfaces": lambda: 3}]
    assert of_ranks([1, 0, 2, 1], world(*infos))[:3] == ((0, 1, 1, 0), 1, 0)
    assert of_ranks([1, 2], world(*infos)).interfaces == 2


def test_a_group_of_one_process_has_no_network():
    assert of_ranks([0, 0], None)[:4] == ((0, 0), 1, 0, "tcp")
