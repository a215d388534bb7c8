"""TCP's congestion control of the connections that carry data."""

from __future__ import annotations

import contextlib
import pathlib
import socket

from jaxring.errors import JoinError

_ALLOWED = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def choose(sock: socket.socket, name: str) -> None:
    """Set the congestion control of `sock` to `name`, such as cubic; "" keeps the host's choice.

    Where the kernel refuses, raises JoinError that lists those that the kernel allows every process.
    """
    if not name:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        allowed = ""
        with contextlib.suppress(OSError):
            allowed = _ALLOWED.read_text(encoding="ascii").strip()
        raise JoinError(
            f"JAXRING_SOCKET_CONGESTION={name}: {error.strerror}. The kernel lets this process take one of: "
            f"{allowed or 'none'}."
        ) from error
