"""A transport is a folder of its own in ffi/transport/, a module here, and one line in the engine's registry."""

from __future__ import annotations

import re
import sys
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world import failover, links, transports
from jaxring.world.transports.record import Transport
from tests import ROOT

FFI = ROOT / "ffi"

TUNNEL = '''
from jaxring.world.transports.record import Transport

PORTS = ("left", "right")


class Tunnel(Transport):
    """Joins any two processes."""

    name = "tunnel"
    words = "tunnel"
    preference = 5

    def load(self, own):
        return own.native.connector_load(self.name, "a tunnel")

    def joins(self, settings, own, peer):
        return True

    def kind(self, own, peer):
        return "deep"

    def place(self, own, kind, channel):
        return {"depth": kind, "device": PORTS[channel % 2]}

    def ports(self, info, kind):
        return PORTS if kind == "deep" else ()


TRANSPORT = Tunnel()
'''


@pytest.fixture
def tunnel(tmp_path, monkeypatch):
    """The package of transports has one more module."""
    folder = tmp_path / "transports"
    folder.mkdir()
    (folder / "tunnel.py").write_text(TUNNEL)
    monkeypatch.setattr(transports, "__path__", [*transports.__path__, str(folder)])
    found = transports._discover()
    monkeypatch.setattr(transports, "TRANSPORTS", found)
    monkeypatch.setattr("jaxring.world.links.TRANSPORTS", found)
    yield found["tunnel"]
    del sys.modules["jaxring.world.transports.tunnel"]


@pytest.mark.usefixtures("tunnel")
def test_a_module_joins_hosts_by_it(make_world):
    assert list(transports.TRANSPORTS) == ["tunnel", "shm", "plugin", "verbs", "tcp"]
    zero, native0 = make_world(0, HOSTID="a")
    _, native1 = make_world(1, HOSTID="b")
    assert [zero.link(1, 0), zero.link(1, 3), zero.transport(1)] == ["tunnel"] * 3
    assert native0.named("connector_load") == [("connector_load", "tunnel", "a tunnel")]
    assert native0.named("tunnel_offer")[1] == ("tunnel_offer", 1, 3, True, {"depth": "deep", "device": "right"})
    assert native1.wait_for("tunnel_prepare", 2)[1] == ("tunnel_prepare", 0, 3, False, "offer of right")
    assert native1.wait_for("tunnel_finish", 2)[0] == ("tunnel_finish", 0, 0, False)
    assert not native0.named("connector_forget")


@pytest.mark.usefixtures("tunnel")
def test_its_links_go_on_over_other_ports_of_its_own(make_world, monkeypatch):
    # Nothing goes back, and nothing is late on a busy machine.
    monkeypatch.setattr(failover, "_RETURN_S", 1000.0)
    monkeypatch.setattr(failover, "_EACH_S", 60.0)
    monkeypatch.setattr(failover.port_pairs, "_ATTEMPT_S", 60.0)
    zero, native0 = make_world(0, HOSTID="a")
    _, native1 = make_world(1, HOSTID="b")
    zero.link(1, 0)
    native1.wait_for("tunnel_finish")
    (path,) = (path for _, path in native0.named("path") if path)
    native0.lose(path)
    native0.wait_for("link_take_over")
    assert native1.wait_for("link_take_over") == [("link_take_over", path, False, 1, False)]
    assert native1.named("link_offer") == [("link_offer", path, False, 1, "right")]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"ports_of": "burrow"}, "ValueError: ports_of is none of shm, plugin, verbs, tcp"),
        ({"ports_of": "tcp", "kind": "deep"}, r"has no TCP ports of kind 'deep' that a link can go on over"),
    ],
)
def test_a_move_to_ports_that_there_are_not_is_refused(make_world, asked, why):
    zero, _ = make_world(0, HOSTID="a")
    make_world(1, HOSTID="b")
    peer = zero.info(1)
    sock, session = zero._dial_again(peer, peer.addresses, time.monotonic() + 60, 60.0)
    request = {"from": 0, "token": zero.own.token, "channel": 0, "transport": "resume", "path": "p", "attempt": 1}
    with sock, pytest.raises(JoinError, match=why):
        links.ask(sock, session, request | asked, peer, "to go on", time.monotonic() + 60)


def test_two_of_one_name_are_refused(tunnel, tmp_path):
    assert isinstance(tunnel, Transport)
    (tmp_path / "transports" / "burrow.py").write_text(TUNNEL)
    try:
        with pytest.raises(ValueError, match="there are two transports 'tunnel'"):
            transports._discover()
    finally:
        del sys.modules["jaxring.world.transports.burrow"]


def test_both_sides_have_the_folders_of_transports():
    connectors = (FFI / "network" / "connectors.cc").read_text(encoding="utf-8")
    folders = {path.name for path in (FFI / "transport").iterdir() if path.is_dir()} - {"core"}
    listed = {name.lower() for name in re.findall(r"EACH\(Make(\w+)Connector\)", connectors)}
    assert listed == folders == transports.TRANSPORTS.keys()
    for folder in folders:
        text = "".join(path.read_text(encoding="utf-8") for path in (FFI / "transport" / folder).glob("*.h"))
        assert re.findall(r'constexpr Transport k\w+\{\.name = "(\w+)"', text) == [folder]


def test_the_engine_knows_transports_by_their_interface_alone():
    names = "|".join(transports.TRANSPORTS)
    including, naming = set(), set()
    for path in FFI.rglob("*"):
        name = path.relative_to(FFI).as_posix()
        if path.suffix not in (".cc", ".h") or name.startswith("tests/"):
            continue
        text = path.read_text(encoding="utf-8")
        if not name.startswith("transport/") and re.search(r'#include "transport/(?!core/)', text):
            including.add(name)
        if not name.startswith(tuple(f"transport/{each}/" for each in transports.TRANSPORTS)):
            naming |= {name for _ in re.findall(rf'"({names})"', text)}
    # bind_links.cc lists this host's RDMA ports. It encrypts control connections, which may move as TCP's links do.
    assert including == {"bind/bind_links.cc", "network/paths.h"}
    assert not naming


def test_the_world_knows_transports_by_their_records_alone():
    names = "|".join(transports.TRANSPORTS)
    world = ROOT / "jaxring" / "world"
    files = [path for path in world.rglob("*.py") if path.stem not in transports.TRANSPORTS]
    assert len(files) > 20
    assert not [path.name for path in files if re.search(rf'"({names})"', path.read_text(encoding="utf-8"))]
