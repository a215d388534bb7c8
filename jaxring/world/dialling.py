"""Finds a way to a peer: dials its addresses until one answers and proves who it is."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world import handshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.world.handshake import Session
    from jaxring.world.identity import ProcessInfo

# Longest wait for one address to answer, and the pause between dials.
_CONNECT_S = 10.0
_RETRY_S = 0.05
# A process listens before it publishes its address, and as long as it lives: who is refused for so long finds it dead.
_REFUSED_S = 5.0


def connect(
    peer: ProcessInfo,
    own: int,
    secret: bytes,
    channel: int,
    timeout_s: float,
    deadline: float,
    closed: Callable[[], bool],
) -> tuple[socket.socket, Session]:
    """An authenticated connection of process `own` to `peer`, by `deadline` (`timeout_s` after it was wanted).

    Channels start with different interfaces, so they share the load. Gives up when `closed()`. Raises JoinError.
    """
    names = list(dict.fromkeys(name for name, _, _ in peer.addresses))
    first = channel % len(names)
    order = {name: place for place, name in enumerate(names[first:] + names[:first])}
    addresses = sorted(peer.addresses, key=lambda entry: order[entry[0]])
    refused_since = time.monotonic()
    while True:
        reasons = []
        refused = True
        for _, address, port in addresses:
            if closed():
                raise JoinError("This World is closed.")
            sock = None
            try:
                limit = min(deadline, time.monotonic() + _CONNECT_S)
                sock = socket.create_connection((address, port), max(0.001, limit - time.monotonic()))
                return sock, handshake.authenticate(sock, secret, own, peer.index, limit)
            except OSError as error:
                # Refused, reset or late: a busy acceptor drops connections, so it is worth another try.
                reasons.append(f"{address} port {port}: {error}")
                refused &= isinstance(error, ConnectionRefusedError)
                if sock is not None:
                    sock.close()
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
        now = time.monotonic()
        refused_since = refused_since if refused else now
        if now - refused_since > _REFUSED_S:
            raise JoinError(
                f"{peer} does not listen any more, so it has ended: its log says why. " + "; ".join(reasons)
            )
        if now + _RETRY_S >= deadline:
            raise JoinError(f"Cannot reach {peer} within {timeout_s:g} s (JAXRING_JOIN_TIMEOUT). " + "; ".join(reasons))
        time.sleep(_RETRY_S)
