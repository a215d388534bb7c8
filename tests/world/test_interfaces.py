"""Which addresses are listened on."""

from __future__ import annotations

import socket

import pytest

from jaxring.errors import JoinError
from jaxring.topology import interfaces
from jaxring.topology.interfaces import Address

HAVE = [
    Address("lo", "127.0.0.1"),
    Address("eth0", "10.0.0.1"),
    Address("eth0", "2001:db8::1"),
    Address("eth10", "10.1.0.1"),
    Address("docker0", "172.17.0.1"),
]


@pytest.fixture
def have(monkeypatch):
    monkeypatch.setattr(interfaces, "addresses", lambda: HAVE)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("eth", ["eth0", "eth0", "eth10"]),
        ("eth1,docker", ["eth10", "docker0"]),
        ("=eth1", None),
        ("=eth0,docker0", ["eth0", "eth0", "docker0"]),
        ("^docker", ["eth0", "eth0", "eth10"]),
        ("^=eth0", ["eth10", "docker0"]),
        ("^eth,docker", None),
        ("lo", ["lo"]),
    ],
)
def test_the_variable_means_what_it_means_to_nccl(have, spec, names):
    if names is None:
        with pytest.raises(JoinError, match=r"lo 127\.0\.0\.1, eth0 10\.0\.0\.1"):
            interfaces.choose(spec, "")
    else:
        assert [entry.interface for entry in interfaces.choose(spec, "")] == names


@pytest.mark.parametrize("coordinator", ["", "127.0.0.1:1", "localhost:1", "[::1]:1", "127.9.9.9:80"])
def test_a_local_coordinator_means_loopback(have, coordinator):
    assert interfaces.choose("", coordinator) == [HAVE[0]]


def test_the_route_to_the_coordinator_decides(have, monkeypatch):
    monkeypatch.setattr(
        interfaces, "_route_source", lambda host: {"far": "10.1.0.1", "alias": "10.0.0.9"}.get(host, "")
    )
    assert interfaces.choose("", "far:1") == [HAVE[3]]
    assert interfaces.choose("", "alias:1") == [Address("route", "10.0.0.9")]


def test_a_name_that_is_loopback_only_here_does_not_hide_this_host(have, monkeypatch):
    monkeypatch.setattr(interfaces, "_route_source", lambda host: "127.0.1.1")
    assert interfaces.choose("", "myself:1") == HAVE[1:]


def test_this_host_has_loopback():
    found = interfaces.addresses()
    assert "127.0.0.1" in {entry.address for entry in found}
    assert {entry.interface for entry in found} <= {name for _, name in socket.if_nameindex()}
    assert interfaces.choose("lo", "")[0].loopback
    assert interfaces._route_source("127.0.0.1") == "127.0.0.1"
