"""A transport between hosts is a folder of its own in ffi/transport/, a module here, and a line in either registry."""

from __future__ import annotations

import pathlib
import re

from jaxring.world import transports
from jaxring.world.transports.record import Offered

FFI = pathlib.Path(__file__).parents[2] / "ffi"


class Tunnel(Offered):
    """Joins whatever TCP would."""

    name = "tunnel"
    words = "tunnel"

    def load(self, own):
        return own.native.offered_load(self.name, "a tunnel")

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
    monkeypatch.setitem(transports.OFFERED, "tunnel", Tunnel())
    zero, native0 = make_world(0, HOSTID="a")
    _, native1 = make_world(1, HOSTID="b")
    assert [zero.link(1, 0), zero.link(1, 3), zero.transport(1)] == ["tunnel"] * 3
    assert native0.named("offered_load") == [("offered_load", "tunnel", "a tunnel")]
    assert native0.named("tunnel_offer")[1] == ("tunnel_offer", 1, 3, True, {"depth": "deep", "lane": "3"})
    assert native1.wait_for("tunnel_prepare", 2)[1] == ("tunnel_prepare", 0, 3, False, "offer of tunnel")
    assert native1.wait_for("tunnel_finish", 2)[0] == ("tunnel_finish", 0, 0, False)


def test_the_engine_knows_transports_by_their_interface_alone():
    found = set()
    for path in FFI.rglob("*"):
        name = path.relative_to(FFI).as_posix()
        if path.suffix not in (".cc", ".h") or name.startswith(("transport/", "tests/")):
            continue
        if re.search(r'#include "transport/(verbs|plugin)/', path.read_text(encoding="utf-8")):
            found.add(name)
    # bind_links.cc lists the RDMA ports of this host.
    assert found == {"network/transports.cc", "bind/bind_links.cc"}
