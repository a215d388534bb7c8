"""TCP's congestion control of the connections that carry data."""

from __future__ import annotations

import contextlib
import pathlib
import socket

from jaxring.errors import JoinError

_ALLOWED = pathlib.Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def choose(sock: socket.socket, name: str) -> None:
    """Have the sender of `sock` go by `name`, such as cubic; the host's choice stays where it is "".

    Raises JoinError, which lists those that the kernel has for everybody, where it refuses.
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
