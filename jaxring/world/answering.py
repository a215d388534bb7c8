"""Answers the processes and viewers that have connected to this process and authenticated.

It makes the links that they ask for. Each request is answered in a thread of its own, which
`jaxring.world.connections.listener` starts.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError, JoinError
from jaxring.world import links, viewers
from jaxring.world.claims import CONTROL, Claims
from jaxring.world.connections.handshake import VIEWER
from jaxring.world.failover import MoveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.settings import Settings
    from jaxring.world.connections.handshake import Session
    from jaxring.world.failover import Failover
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native
    from jaxring.world.transports import Transports
    from jaxring.world.viewers import ViewerService

logger = logging.getLogger("jaxring.world")

# Longest wait of an acceptor for the request and the answer's delivery.
_REQUEST_S = 30.0


class Answers:
    """What one World answers. `info` says what a process has published; `left` whether no link is to be made any more.
    Safe from any thread."""

    def __init__(
        self,
        own: ProcessInfo,
        native: Native,
        settings: Settings,
        info: Callable[[int], ProcessInfo],
        left: Callable[[], bool],
        transports: Transports,
        failover: Failover,
        viewer_service: ViewerService | None,
    ) -> None:
        self._own, self._native, self._settings, self._info, self._left = own, native, settings, info, left
        self._transports, self._failover, self._viewer_service = transports, failover, viewer_service
        self.claims = Claims()

    def serve(self, sock: socket.socket, session: Session) -> None:
        """Answers the one request of an authenticated peer. The socket is used up."""
        with sock:
            try:
                self._answer(sock, session)
            except Exception as error:
                who = "a viewer" if session.peer == VIEWER else f"process {session.peer}"
                if isinstance(error, MoveError):  # which its peer tries again
                    logger.info("A connection from %s does not go on yet: %s", who, error)
                else:
                    logger.warning("no link from %s: %s", who, error)
                if sock.fileno() < 0:
                    return  # the engine has the socket
                ours = isinstance(error, (JaxringError, MoveError))
                what = str(error) if ours else f"{type(error).__name__}: {error}"
                printable = "".join(c if c.isprintable() else " " for c in what)[:4096]
                with contextlib.suppress(OSError):  # the peer may be what failed
                    session.send(sock, {"error": printable}, time.monotonic() + _REQUEST_S)

    def _answer(self, sock: socket.socket, session: Session) -> None:
        if session.peer == VIEWER:
            viewers.answer(self._viewer_service, sock, session)
            return
        deadline = time.monotonic() + _REQUEST_S
        sock.settimeout(_REQUEST_S)
        if not sock.recv(1, socket.MSG_PEEK):
            # The peer may have found, once it had connected, that the connection which was to move is gone.
            logger.info("process %d closed a connection before it asked for anything.", session.peer)
            return
        request = links.Request(session.receive(sock, deadline), session)
        if request.transport == "resume":
            how = None
            if request.ports_of:
                how = self._transports.moving(self._own, request.ports_of, request.kind, request.channel)
            self._failover.accept(sock, session, request, how)
            return
        if self._left():
            raise JoinError(f"{self._own} makes no links any more: it is forming the job anew.")
        claim = (session.peer, CONTROL if request.transport == "control" else request.channel)
        deadline = time.monotonic() + _REQUEST_S
        with self.claims.making(claim, deadline):
            peer = self._info(session.peer)
            if request.transport == "control":
                links.accept_control(sock, session, request, peer, self._native, deadline, self._settings.tls)
                return
            how = self._transports.accepting(request.transport, request.kind, request.channel)
            words = links.accept(sock, session, request, self._own, peer, how, deadline, self._settings.tls)
        if words:
            logger.info("%s link from %s, channel %d: %s", how.transport.words, peer, request.channel, words)
        logger.debug("receiving link from %s, channel %d: %s", peer, request.channel, request.transport)
