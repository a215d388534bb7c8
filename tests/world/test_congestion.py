"""JAXRING_SOCKET_CONGESTION: the sockets that carry data have it, or the start fails and lists what there is."""

from __future__ import annotations

import pathlib
import socket

import pytest

from jaxring.errors import JoinError


def controls(native):
    """Of the sending sockets that the engine got."""
    return [
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        for (_, _, sending), sock in native.sockets.items()
        if sending
    ]


@pytest.mark.parametrize("asked", ["reno", ""])
def test_the_sending_side_takes_what_is_asked_for(make_world, asked):
    host = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1", SOCKET_CONGESTION=asked) for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("tcp_finish")
    assert controls(native0) == [asked or host]


def test_a_control_that_is_not_there_is_an_error(make_world):
    (zero, _), _ = (make_world(p, SHM_DISABLE="1", SOCKET_CONGESTION="nosuch") for p in (0, 1))
    with pytest.raises(JoinError, match=r"JAXRING_SOCKET_CONGESTION=nosuch: .* take one of: .*reno"):
        zero.link(1, 0)
