"""Has connections go on over another path where theirs fails, and go back to the first one when that answers again.

Both ends of such a connection keep what the other has not got yet (`ffi/transport/tcp/resumable.h`, which has the order
of a move). The engine says which connections fail. The end that has dialled one dials again, at the peer's other
addresses first, and asks for the old connection by its name, a random one. Connections of hosts with one address have
no name: for them there is no other path. RDMA links go on over other ports instead, and dial wherever the peer answers.
What both ends tell each other is in `jaxring.world.resumption`, and for RDMA links in `jaxring.world.port_pairs`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.world import daemons, port_pairs, resumption
from jaxring.world.connections.named import Named

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from jaxring.settings import Settings
    from jaxring.world import links
    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native
    from jaxring.world.transports.record import Offering, PortPairs

logger = logging.getLogger("jaxring.world")

_POLL_S = 0.25
_RETRY_S = 0.05
# An address that does not answer for so long is passed over for the next one.
_EACH_S = 1.0
# Until the first path is tried again: the least, and the most where it keeps failing soon after it has answered.
_RETURN_S, _RETURN_MOST_S = 2.0, 60.0
# A path that fails within so long of a return has failed again.
_RELAPSE_S = 10.0
# Dialling a lost connection goes on for so long before it is asked whether it has come back by itself: longer than
# the time after which a peer that refuses has ended.
_ROUND_S = 6.0


class MoveError(Exception):
    """The other end of a connection does not go on in this attempt. It reaches that end, and no user."""


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
        self._connections: dict[str, Named] = {}
        self._watched = self._returning = False
        self._failing: set[tuple[int, str]] = set()  # (peer, address) of which the log says so

    def name(self, peer: ProcessInfo, pairs: PortPairs | None = None) -> str:
        """A name for a connection to `peer` that is about to be made; "" where there is no other path.

        That is where a host listens on one interface only, or where an RDMA link has one pair of ports.
        """
        if pairs is not None:
            return secrets.token_hex(16) if len(pairs) > 1 else ""
        both = all(len({name for name, _, _ in info.addresses}) > 1 for info in (self._own, peer))
        return secrets.token_hex(16) if both else ""

    @contextlib.contextmanager
    def watching(
        self, path: str, peer: ProcessInfo, address: str, data: bool, pairs: PortPairs | None = None, channel: int = 0
    ) -> Iterator[None]:
        """Has the connection of that name go on when it fails: one with `address` of the peer, which is made inside.

        `data`: it is a link, and not the control connection. With `pairs` it is an RDMA link on that channel.
        """
        if not path:
            yield
            return
        pair = 0 if pairs is None else channel % len(pairs)
        home = address if pairs is None else pairs.name(pair)
        connection = Named(path, peer, home, home, data, pairs, pair, pair)
        with self._lock:
            if not self._watched:
                daemons.start("jaxring-failover", self._run)
                self._watched = True
            self._connections[path] = connection
        try:
            yield
        except BaseException:
            self._forget(connection)
            raise

    def accept(self, sock: socket.socket, session: Session, request: links.Request, how: Offering | None) -> None:
        """The other end of a move. The socket is used up. Raises MoveError.

        `how`: this end's part where an RDMA link is to move.
        """
        try:
            if how is not None:
                port_pairs.accept(sock, session, how, request.path, request.attempt, request.offer)
            else:
                resumption.accept(sock, session, self._native, self._settings, request.path, request.attempt)
        except (JoinError, OSError, ValueError, RuntimeError) as error:
            raise MoveError(str(error)) from error

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
                        self._start(self._recover, connection, why)
                self._begin_return()

    def _recover(self, connection: Named, why: str, failed: str = "") -> None:
        """Dials until the connection goes on, here or by itself. The engine gives it up after JAXRING_LINK_TIMEOUT.

        `why` says how the address `failed` does; that is the present one where it is "".
        """
        path, peer, moved = connection.path, connection.peer, False
        with connection.moving:
            self._relapsed(connection)
            failed = failed or connection.now
            pairs = itertools.cycle(() if connection.pairs is None else connection.pairs.after(connection.pair))
            # The connection is not stopped before the peer has answered: its path may come back.
            while not self._closed() and self._native.path_is_lost(path):
                try:
                    moved = self._go_on(connection, failed, next(pairs, 0))
                    if moved:
                        break
                except Exception as error:  # nobody else goes on with it
                    if isinstance(error.__cause__, ConnectionRefusedError):
                        at = ", ".join(f"{address} port {port}" for _, address, port in peer.addresses)
                        self._native.path_fail(path, f"its process does not listen any more at {at}, so it has ended")
                    logger.info("%s: its connection over %s does not go on yet: %s", peer, connection.now, error)
                    time.sleep(_RETRY_S)
            now = connection.now
        if now != failed:
            if self._note_failure(peer, failed, now):
                logger.warning("%s %s at %s; its connections go on over %s.", peer, why, failed, now)
        elif moved and failed == connection.home:
            self._note_return(connection)

    def _go_on(self, connection: Named, failed: str, pair: int) -> bool:
        """Makes an attempt at another address than the one that failed, or over that pair of ports. As `_move`."""
        peer = connection.peer
        if connection.pairs is not None:
            return self._switch(connection, connection.pairs, pair)
        interface = {address: name for name, address, _ in peer.addresses}

        def place(entry: tuple[str, str, int]) -> tuple[bool, bool, bool]:
            name, address, _ = entry
            return (address == connection.tried, name == interface.get(failed), address == failed)

        others = sorted(peer.addresses, key=place)
        sock, session = self._dial(peer, others, time.monotonic() + _ROUND_S, _EACH_S)
        return self._move(connection, sock, session)

    def _relapsed(self, connection: Named) -> None:
        soon = time.monotonic() - connection.returned_at < _RELAPSE_S
        connection.return_s = min(2 * connection.return_s, _RETURN_MOST_S) if soon else _RETURN_S
        connection.return_at = time.monotonic() + connection.return_s

    def _begin_return(self) -> None:
        now = time.monotonic()
        with self._lock:
            if self._returning:
                return
            due = [each for each in self._connections.values() if each.now != each.home and each.return_at < now]
            for each in due:
                each.return_at = now + each.return_s
            self._returning = bool(due)
        if due:
            self._start(self._return, due)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                work(*args)
            except (JoinError, RuntimeError) as error:  # closed, or the engine has ended
                logger.info("Failover has ended: %s", error)

        try:
            daemons.start("jaxring-failover", run)
        except RuntimeError as error:  # no thread can be started
            logger.warning("One thread serves all connections that fail, since no other can be started: %s.", error)
            run()

    def _return(self, due: list[Named]) -> None:
        """Moves connections back to their first address where that answers. One thread at a time does so."""
        try:
            self._return_each(due)
        finally:
            with self._lock:
                self._returning = False

    def _return_each(self, due: list[Named]) -> None:
        dead: dict[tuple[int, str], bool] = {}  # by place: whether a move has failed there, and not only a dial
        for each in due:
            place = (each.peer.index, each.home)
            if self._closed() or each.now == each.home or each.moving.locked():
                continue
            if place in dead:
                if dead[place]:
                    self._return_later(each)
                continue
            if not self._native.path_lives(each.path):
                self._forget(each)
                continue
            failed = ""
            with contextlib.ExitStack() as held:
                if each.pairs is None:
                    home = [entry for entry in each.peer.addresses if entry[1] == each.home]
                    try:
                        sock, session = self._dial(each.peer, home, time.monotonic() + _EACH_S, _EACH_S)
                    except (JoinError, OSError, ValueError):
                        dead[place] = False
                        continue
                    held.enter_context(sock)
                # The peer waits for a request only so long, so one that is being moved is left for the next time.
                if not each.moving.acquire(blocking=False):
                    continue
                held.callback(each.moving.release)
                if each.now == each.home:
                    continue  # it has come back since
                try:
                    if each.pairs is None:
                        moved = self._move(each, sock, session)
                    else:
                        moved = self._switch(each, each.pairs, each.home_pair)
                    if not moved:
                        continue  # the engine has it no more
                    each.returned_at = time.monotonic()
                except Exception as error:
                    failed = f"cannot be reached ({error})"
                    logger.info("%s: its connection does not go back to %s: %s", each.peer, each.home, error)
            if failed:
                dead[place] = True
                if each.pairs is None:
                    each.returned_at = time.monotonic()  # it has failed again, so that it is left alone for longer
                    self._start(self._recover, each, failed, each.home)
                else:
                    self._return_later(each)  # where its ports have ended, too, `_recover` learns of it
            else:
                self._note_return(each)

    @staticmethod
    def _return_later(connection: Named) -> None:
        """Tries the first path half as often.

        A dial costs nothing, but a move that fails has stopped a TCP connection for up to _MOVE_S, or has registered
        all memory of an RDMA link.
        """
        connection.return_s = min(2 * connection.return_s, _RETURN_MOST_S)
        connection.return_at = time.monotonic() + connection.return_s

    def _switch(self, connection: Named, pairs: PortPairs, pair: int) -> bool:
        """Has an RDMA link go on over that pair of ports. False if it is gone.

        Where this raises, it has the ports that it had, unless the peer had switched already: then it has none, which
        the engine finds, and `_recover` goes on with it.
        """
        path, peer = connection.path, connection.peer
        attempt, how = next(connection.attempts), pairs.offering(pair)
        # A port of this process that is down troubles nobody else.
        try:
            offer = self._native.link_offer(path, True, attempt, dict(how.place))
        except ValueError:
            self._forget(connection)
            return False
        with self._lock:
            addresses = sorted(peer.addresses, key=lambda entry: (peer.index, entry[1]) in self._failing)
        sock, session = self._dial(peer, addresses, time.monotonic() + _ROUND_S, _EACH_S)
        request = {"from": self._own.index, "token": self._own.token, "channel": pair, "transport": "resume"}
        request |= {"ports_of": how.transport.name, "kind": how.kind, "path": path, "attempt": attempt, "offer": offer}
        with sock:
            port_pairs.move(sock, session, peer, self._native, request, pair != connection.home_pair)
        connection.pair, connection.now = pair, pairs.name(pair)
        return True

    def _move(self, connection: Named, sock: socket.socket, session: Session) -> bool:
        """Has the connection go on over `sock`, which is used up. False if the connection is gone.

        Where this raises, the connection is stopped.
        """
        moved = resumption.move(sock, session, self._own, self._native, self._settings, connection)
        if not moved:
            self._forget(connection)
        return moved

    def _forget(self, connection: Named) -> None:
        with self._lock:
            self._connections.pop(connection.path, None)

    def _note_failure(self, peer: ProcessInfo, address: str, now: str) -> bool:
        """Whether the log does not say yet that the address fails: it says so once for all connections."""
        with self._lock:
            new = (peer.index, address) not in self._failing
            self._failing.add((peer.index, address))
            self._failing.discard((peer.index, now))
        return new

    def _note_return(self, connection: Named) -> None:
        """Says in the log that the first address answers again, where it has said that this address fails."""
        peer, home = connection.peer, connection.home
        with self._lock:
            known = (peer.index, home) in self._failing
            self._failing.discard((peer.index, home))
        if known:
            logger.warning("%s answers again at %s; its connections go back to that.", peer, home)
