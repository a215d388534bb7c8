"""What the two ends of an RDMA link tell each other when it goes on over another pair of ports.

`ffi/transport/core/movable.h` has the order of the calls, and `PortPairs` the pairs.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from jaxring.world import links, wire

if TYPE_CHECKING:
    import socket

    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native
    from jaxring.world.transports.record import Offering

# An attempt may take so long; so long of it the new ports have to answer.
_ATTEMPT_S, _TRY_S = 4.0, 1.0
_MAX_TEXT = 8000


def move(
    sock: socket.socket, session: Session, peer: ProcessInfo, native: Native, request: dict[str, Any], detour: bool
) -> None:
    """Have the link that `request` names go on over the ports of its offer. `sock` stays beside it, and is used up.

    Raises JoinError, RuntimeError, ValueError or OSError where the attempt fails.
    """
    until = time.monotonic() + _ATTEMPT_S
    path, attempt = request["path"], request["attempt"]
    answer = links.ask(sock, session, request, peer, "to go on with a link", until)
    native.link_prepare(path, True, attempt, wire.text(answer.get("offer"), "offer", _MAX_TEXT))
    native.link_try(path, attempt, _TRY_S)
    session.send(sock, {"works": True}, until)
    answer = links.answered(session.receive(sock, until), peer, "to switch to other ports")
    received = wire.text(answer.get("received"), "received", _MAX_TEXT)
    try:
        native.link_switch(path, True, attempt, received)
    except (RuntimeError, ValueError):
        # Where the link has ended, the new connection tells the peer why: that one has closed the old one.
        with contextlib.suppress(RuntimeError, ValueError):
            native.link_take_over(path, True, attempt, fd=links.release(sock), detour=detour)
        raise
    native.link_take_over(path, True, attempt, fd=links.release(sock), detour=detour)


def accept(sock: socket.socket, session: Session, how: Offering, path: str, attempt: int, offer: str) -> None:
    """The other end of `move`. Raises what the engine raises, OSError or ValueError where the peer gives up."""
    until = time.monotonic() + 2 * _ATTEMPT_S
    native = how.native
    own_offer = native.link_offer(path, False, attempt, dict(how.place))
    native.link_prepare(path, False, attempt, offer)
    session.send(sock, {"ok": True, "offer": own_offer}, until)
    if session.receive(sock, until).get("works") is not True:
        raise ValueError("the peer does not say that the new ports work")
    received = native.link_switch(path, False, attempt, "")
    session.send(sock, {"received": received}, until)
    native.link_take_over(path, False, attempt, fd=links.release(sock), detour=False)
