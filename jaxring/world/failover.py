"""Has connections go on over another path where theirs fails, and go back to the first one when that answers again.

Both ends of such a connection keep what the other has not got yet (`ffi/transport/tcp/resumable.h`, which has the order
of a move). The engine says which connections fail. The end that has dialled one dials again, at the peer's other
addresses first, and asks for the old connection by its name, a random one. Connections of hosts with one address have
no name: for them there is no other path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.world import daemons, links, wire
from jaxring.world.transports import congestion

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from jaxring.settings import Settings
    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native

logger = logging.getLogger("jaxring.world")

_POLL_S = 0.25
_RETRY_S = 0.05
# An address that does not answer for so long is passed over for the next one.
_EACH_S = 1.0
# Until the first path is tried again: the least, and the most where it keeps failing soon after it has answered.
_RETURN_S, _RETURN_MOST_S = 2.0, 60.0
# A path that fails within so long of a return has failed again.
_RELAPSE_S = 10.0
_MOST_BYTES = (1 << 63) - 1


@dataclasses.dataclass(eq=False)
class _Connection:
    """One that this process has dialled. `home`: the peer's address that it was made with; `now`: the present one."""

    path: str
    peer: ProcessInfo
    home: str
    now: str
    attempts: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))
    moving: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    return_s: float = _RETURN_S
    return_at: float = 0.0
    returned_at: float = float("-inf")


class Failover:
    """The connections of one World. `dial` makes an authenticated one: of a peer, at one of these addresses in their
    order, by a deadline (time.monotonic seconds). `closed` says whether the World is closed. Safe from any thread."""

    def __init__(
        self,
        own: ProcessInfo,
        native: Native,
        settings: Settings,
        dial: Callable[[ProcessInfo, Sequence[tuple[str, str, int]], float, float], Any],
        closed: Callable[[], bool],
    ) -> None:
        self._own, self._native, self._settings, self._dial, self._closed = own, native, settings, dial, closed
        self._lock = threading.Lock()
        self._connections: dict[str, _Connection] = {}
        self._watched = False
        self._told: set[tuple[int, str]] = set()

    def name(self, peer: ProcessInfo) -> str:
        """A name for a connection to `peer` that is about to be made; "" where there is one path only."""
        both = all(len({name for name, _, _ in info.addresses}) > 1 for info in (self._own, peer))
        return secrets.token_hex(16) if both else ""

    @contextlib.contextmanager
    def watching(self, path: str, peer: ProcessInfo, address: str) -> Iterator[None]:
        """Has the connection of that name go on when it fails: one with `address` of the peer, which is made inside."""
        if not path:
            yield
            return
        connection = _Connection(path, peer, address, address)
        with self._lock:
            self._connections[path] = connection
            begin, self._watched = not self._watched, True
        if begin:
            daemons.start("jaxring-failover", self._run)
        try:
            yield
        except BaseException:
            self._forget(connection)
            raise

    def accept(self, sock: socket.socket, session: Session, path: str, attempt: int, deadline: float) -> None:
        """The other end of a move: see `_move`. The socket is used up. Raises OSError or ValueError."""
        self._native.path_suspend(path, False, attempt)
        received = self._native.path_drain(path, False, attempt)
        session.send(sock, {"ok": True, "received": received}, deadline)
        theirs = wire.integer(session.receive(sock, deadline).get("received"), "received", 0, _MOST_BYTES)
        self._resume(sock, session, path, False, attempt, theirs, False, deadline)

    def _run(self) -> None:
        with contextlib.suppress(JoinError, RuntimeError):  # closed, or the engine has ended
            while not self._closed():
                lost = self._native.paths_lost(_POLL_S)
                if lost is None:
                    return
                for path, why in lost:
                    with self._lock:
                        connection = self._connections.get(path)
                    if connection is not None:
                        daemons.start("jaxring-failover", self._recover, connection, why)
                self._begin_return()

    def _recover(self, connection: _Connection, why: str) -> None:
        """Dials until the connection goes on. The engine gives it up after JAXRING_LINK_TIMEOUT."""
        with connection.moving:
            self._relapsed(connection)
            old, peer = connection.now, connection.peer
            deadline = time.monotonic() + self._settings.link_timeout
            while not self._closed():
                attempt = next(connection.attempts)
                try:
                    self._native.path_suspend(connection.path, True, attempt)
                except (ValueError, JoinError, RuntimeError):
                    self._forget(connection)
                    return
                others = sorted(peer.addresses, key=lambda entry: entry[1] == old)
                try:
                    sock, session = self._dial(peer, others, deadline, _EACH_S)
                    self._move(connection, sock, session, attempt, min(deadline, time.monotonic() + 2 * _EACH_S))
                    break
                except (JoinError, OSError, ValueError, RuntimeError) as error:
                    logger.info("%s: its connection over %s does not go on yet: %s", peer, old, error)
                    time.sleep(_RETRY_S)
        if connection.now != old and self._tell(peer, old, connection.now):
            logger.warning("%s %s at %s; its connections go on over %s.", peer, why, old, connection.now)

    def _relapsed(self, connection: _Connection) -> None:
        soon = time.monotonic() - connection.returned_at < _RELAPSE_S
        connection.return_s = min(2 * connection.return_s, _RETURN_MOST_S) if soon else _RETURN_S
        connection.return_at = time.monotonic() + connection.return_s

    def _begin_return(self) -> None:
        now = time.monotonic()
        with self._lock:
            due = [each for each in self._connections.values() if each.now != each.home and each.return_at < now]
            for each in due:
                each.return_at = now + each.return_s
        if due:
            daemons.start("jaxring-failover", self._return, due)

    def _return(self, due: list[_Connection]) -> None:
        """Moves connections back to their first address where that answers."""
        dead: set[tuple[int, str]] = set()
        for each in due:
            place = (each.peer.index, each.home)
            if place in dead or self._closed():
                continue
            home = [entry for entry in each.peer.addresses if entry[1] == each.home]
            try:
                sock, session = self._dial(each.peer, home, time.monotonic() + _EACH_S, _EACH_S)
            except (JoinError, OSError):
                dead.add(place)
                continue
            with each.moving:
                attempt = next(each.attempts)
                try:
                    self._native.path_suspend(each.path, True, attempt)
                except (ValueError, JoinError, RuntimeError):
                    sock.close()
                    self._forget(each)
                    continue
                try:
                    self._move(each, sock, session, attempt, time.monotonic() + _EACH_S)
                    each.returned_at = time.monotonic()
                except (JoinError, OSError, ValueError, RuntimeError) as error:
                    failed = f"cannot be reached ({error})"
                else:
                    failed = ""
            if failed:
                self._recover(each, failed)
            elif self._tell_no_more(each):
                logger.warning("%s answers again at %s; its connections go back to that.", each.peer, each.home)

    def _move(self, connection: _Connection, sock: socket.socket, session: Session, attempt: int, until: float) -> None:
        """Has a suspended connection go on over `sock`, which is used up."""
        path, peer = connection.path, connection.peer
        with sock:
            request = {"from": self._own.index, "token": self._own.token, "channel": 0, "transport": "resume"}
            answer = links.ask(sock, session, request | {"path": path, "attempt": attempt}, peer, 0, until)
            theirs = wire.integer(answer.get("received"), "received", 0, _MOST_BYTES)
            received = self._native.path_drain(path, True, attempt)
            session.send(sock, {"received": received}, until)
            address = str(sock.getpeername()[0])
            detour = address != connection.home
            congestion.choose(sock, self._settings.socket_congestion)
            self._resume(sock, session, path, True, attempt, theirs, detour, until)
        connection.now = address

    def _resume(
        self,
        sock: socket.socket,
        session: Session,
        path: str,
        dialled: bool,
        attempt: int,
        received: int,
        detour: bool,
        deadline: float,
    ) -> None:
        key, left = links.security(session, self._settings.tls, deadline)
        fd = links.release(sock)
        self._native.path_resume(
            path, dialled, attempt, fd=fd, key=key, timeout_s=left, received=received, detour=detour
        )

    def _forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.pop(connection.path, None)

    def _tell(self, peer: ProcessInfo, address: str, now: str) -> bool:
        """Whether the log does not say yet that the address fails: it says so once for all connections."""
        with self._lock:
            new = (peer.index, address) not in self._told
            self._told.add((peer.index, address))
            self._told.discard((peer.index, now))
        return new

    def _tell_no_more(self, connection: _Connection) -> bool:
        place = (connection.peer.index, connection.home)
        with self._lock:
            known = place in self._told
            self._told.discard(place)
        return known
