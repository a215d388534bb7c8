"""A transport is a folder of its own in ffi/transport/, a module here, and a line in either registry."""

from __future__ import annotations

import pathlib
import re

from jaxring.world import transports
from jaxring.world.transports.record import Transport

FFI = pathlib.Path(__file__).parents[2] / "ffi"


class Tunnel(Transport):
    """Joins any two processes."""

    name = "tunnel"
    words = "tunnel"

    def load(self, own):
        return own.native.connector_load(self.name, "a tunnel")

    def joins(self, settings, own, peer):
        del settings, own, peer
        return True

    def kind(self, own, peer):
        del own, peer
        return "deep"

    def place(self, own, kind, channel):
        del own
        return {"depth": kind, "lane": str(channel)}


def test_a_line_in_the_registry_joins_hosts_by_it(make_world, monkeypatch):
    monkeypatch.setattr(transports, "TRANSPORTS", {"tunnel": Tunnel(), **transports.TRANSPORTS})
    monkeypatch.setattr("jaxring.world.links.TRANSPORTS", transports.TRANSPORTS)
    zero, native0 = make_world(0, HOSTID="a")
    _, native1 = make_world(1, HOSTID="b")
    assert [zero.link(1, 0), zero.link(1, 3), zero.transport(1)] == ["tunnel"] * 3
    assert native0.named("connector_load") == [("connector_load", "tunnel", "a tunnel")]
    assert native0.named("tunnel_offer")[1] == ("tunnel_offer", 1, 3, True, {"depth": "deep", "lane": "3"})
    assert native1.wait_for("tunnel_prepare", 2)[1] == ("tunnel_prepare", 0, 3, False, "offer of tunnel")
    assert native1.wait_for("tunnel_finish", 2)[0] == ("tunnel_finish", 0, 0, False)
    assert not native0.named("connector_forget")


def test_both_registries_have_the_folders_of_transports():
    connectors = (FFI / "network" / "connectors.cc").read_text(encoding="utf-8")
    folders = {path.name for path in (FFI / "transport").iterdir() if path.is_dir()} - {"core"}
    assert {*re.findall(r'all\.emplace\("(\w+)"', connectors)} == folders == transports.TRANSPORTS.keys()


def test_the_engine_knows_transports_by_their_interface_alone():
    found = set()
    for path in FFI.rglob("*"):
        name = path.relative_to(FFI).as_posix()
        if path.suffix not in (".cc", ".h") or name.startswith(("transport/", "tests/")):
            continue
        if re.search(r'#include "transport/(?!core/)', path.read_text(encoding="utf-8")):
            found.add(name)
    # bind_links.cc lists this host's RDMA ports. It encrypts control connections, which may move as TCP's links do.
    assert found == {"network/connectors.cc", "bind/bind_links.cc", "network/paths.h"}
