"""What the two ends of a TCP connection tell each other when it goes on over another one.

`ffi/transport/tcp/resumable.h` has the order of the calls. `jaxring.world.port_pairs` is the same for RDMA links.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jaxring.world import links, wire
from jaxring.world.transports import congestion

if TYPE_CHECKING:
    import socket

    from jaxring.settings import Settings
    from jaxring.world.connections.handshake import Session
    from jaxring.world.connections.named import Named
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

# Both ends of a move have to be done by then.
_MOVE_S = 2.0
_MOST_BYTES = (1 << 63) - 1


def move(
    sock: socket.socket, session: Session, own: ProcessInfo, native: Native, settings: Settings, connection: Named
) -> bool:
    """Have the connection, which `own` has dialled, go on over `sock`, which is used up. False if it is gone.

    The connection is stopped where this raises JoinError, OSError, ValueError or RuntimeError, since the attempt fails.
    """
    path, peer, until = connection.path, connection.peer, time.monotonic() + _MOVE_S
    attempt = next(connection.attempts)
    with sock:
        try:
            native.path_suspend(path, True, attempt)
        except ValueError:
            return False
        connection.tried = address = str(sock.getpeername()[0])
        request = {"from": own.index, "token": own.token, "channel": 0, "transport": "resume"}
        request |= {"path": path, "attempt": attempt}
        answer = links.ask(sock, session, request, peer, "to go on with a connection", until)
        theirs = wire.integer(answer.get("received"), "received", 0, _MOST_BYTES)
        received = native.path_drain(path, True, attempt)
        session.send(sock, {"received": received}, until)
        detour = address != connection.home
        if connection.data:
            congestion.choose(sock, settings.socket_congestion)
        _resume(sock, session, native, settings, path, True, attempt, theirs, detour, until)
    connection.now, connection.tried = address, ""
    return True


def accept(sock: socket.socket, session: Session, native: Native, settings: Settings, path: str, attempt: int) -> None:
    """The other end of `move`. Raises OSError, ValueError or RuntimeError where the attempt fails."""
    deadline = time.monotonic() + 2 * _MOVE_S
    native.path_suspend(path, False, attempt)
    received = native.path_drain(path, False, attempt)
    session.send(sock, {"ok": True, "received": received}, deadline)
    with sock:  # closed where this fails: an error sent on it would come to the peer's engine, as data
        theirs = wire.integer(session.receive(sock, deadline).get("received"), "received", 0, _MOST_BYTES)
        _resume(sock, session, native, settings, path, False, attempt, theirs, False, deadline)


def _resume(
    sock: socket.socket,
    session: Session,
    native: Native,
    settings: Settings,
    path: str,
    dialled: bool,
    attempt: int,
    received: int,
    detour: bool,
    deadline: float,
) -> None:
    key, left = links.security(session, settings.tls, deadline)
    fd = links.release(sock)
    native.path_resume(path, dialled, attempt, fd=fd, key=key, timeout_s=left, received=received, detour=detour)
