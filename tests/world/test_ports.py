"""Listeners within JAXRING_PORT_RANGE: each takes a free port of it, and an error says that there is none."""

from __future__ import annotations

import os
import select
import socket

import pytest

from jaxring.errors import JoinError
from jaxring.settings import load
from jaxring.topology.interfaces import Address
from jaxring.world import World
from jaxring.world.connections.listener import Listener
from tests.world.world_fakes import DirStore, FakeNative

HERE = Address("lo", "127.0.0.1")


@pytest.fixture
def ports():
    """Three ports in a row that nothing listens on."""
    begin = 20000 + os.getpid() % 2000 * 3  # apart from those of a test that runs at the same time
    for first in range(begin, 30000, 3):
        found = range(first, first + 3)
        try:
            for port in found:
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return found
    raise AssertionError("no three ports are free")


def test_each_process_takes_a_free_port_of_the_range(ports, tmp_path):
    settings = load({"JAXRING_PORT_RANGE": f"{ports[0]}-{ports[-1]}"})
    assert settings.ports == ports
    with socket.create_server(("127.0.0.1", ports[1])):
        natives = [FakeNative(), FakeNative()]
        worlds = [World(DirStore(tmp_path), p, 2, natives[p], 60, settings=settings) for p in range(2)]
        assert [world.own.addresses[0][2] for world in worlds] == [ports[0], ports[2]]
        assert worlds[0].link(1, 0) == "shm"
        why = (
            rf"Cannot listen on 127.0.0.1 \(lo\): all ports of JAXRING_PORT_RANGE={ports[0]}-{ports[2]} are taken. "
            "Each process of this host needs one for each interface"
        )
        with pytest.raises(JoinError, match=why):
            Listener([HERE], settings.ports)
        for world, native in zip(worlds, natives, strict=True):
            world.close()
            native.close()


def test_a_port_is_free_again_after_the_listener_is_closed(ports):
    only = ports[:1]
    for _ in range(2):
        listener = Listener([HERE], only)
        dialled = socket.create_connection(("127.0.0.1", only[0]), 60)
        # The side that closes first keeps the connection's addresses for a minute (TIME_WAIT).
        (accepting,) = listener._sockets
        select.select([accepting], [], [], 60)
        accepting.accept()[0].close()
        assert dialled.recv(1) == b""
        dialled.close()
        listener.close()
    # Of two addresses the first is given up, too, where the second has none.
    with socket.create_server(("127.0.0.2", only[0])):
        with pytest.raises(JoinError, match=r"127\.0\.0\.2"):
            Listener([HERE, Address("lo", "127.0.0.2")], only)
        socket.create_server(("127.0.0.1", only[0])).close()


def test_without_a_range_the_kernel_chooses():
    assert load({}).ports == range(0)
    listener = Listener([HERE])
    assert listener.addresses[0][2] > 0
    listener.close()
