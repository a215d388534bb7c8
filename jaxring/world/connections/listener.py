"""Accepts connections and authenticates their peers: each must know the job's secret.

One thread serves all unauthenticated peers with non-blocking sockets. Each has a deadline, and their number is bounded:
the oldest is dropped first, because a member of the job is done after one round trip. So a peer without the secret
cannot block a member, start a thread, or take more than a few hundred bytes of memory.

A flood of them must not slow the job down either. When more have come than an `Allowance` grants, none is accepted for
a while: connections wait in the kernel, which refuses them when its queue is full. A member could be among them, so
this happens only while no link is expected.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world import daemons
from jaxring.world.connections.allowance import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.topology.interfaces import Address
    from jaxring.world.connections.handshake import Acceptance, Session

logger = logging.getLogger("jaxring.world")

HANDSHAKE_S = 10.0
MAX_UNAUTHENTICATED = 256
_BACKLOG = 1024
# Accepted before the thread again reads from those that were accepted earlier.
_AT_ONCE = 16


class _Unauthenticated:
    """A peer whose handshake is under way."""

    def __init__(self, sock: socket.socket, name: str, acceptance: Acceptance) -> None:
        self.sock = sock
        self.name = name
        self.acceptance = acceptance
        self.received = bytearray()
        self.deadline = time.monotonic() + HANDSHAKE_S


class Listener:
    """Listens on `where`, one port each, from the constructor on; serves from `start` until `close`.

    The ports are free ones of `ports`, or chosen by the kernel where that is empty.

    `acceptance` makes the acceptor's half of a handshake. `on_peer` gets each authenticated socket, which is blocking
    and belongs to it, in a daemon thread of its own. `expecting` says whether a link from a member is expected. The
    constructor raises JoinError where no socket can be made. `came` and `refused` count connections.
    """

    def __init__(self, where: Sequence[Address], ports: range = range(0)) -> None:
        self._sockets: list[socket.socket] = []
        self.addresses: list[tuple[str, str, int]] = []
        for entry in where:
            try:
                sock = _listening(entry, ports)
            except JoinError:
                self._close_sockets()
                raise
            sock.setblocking(False)
            self._sockets.append(sock)
            self.addresses.append((entry.interface, entry.address, sock.getsockname()[1]))
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._pending: collections.OrderedDict[socket.socket, _Unauthenticated] = collections.OrderedDict()
        self._allowance = Allowance()
        self._open = False
        self.came = self.refused = 0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(
        self,
        acceptance: Callable[[], Acceptance],
        on_peer: Callable[[socket.socket, Session], None],
        expecting: Callable[[], bool],
    ) -> None:
        """Serve in a daemon thread. Connections made before this wait in the kernel."""
        self._acceptance, self._on_peer, self._expecting = acceptance, on_peer, expecting
        self._thread = threading.Thread(target=self._run, name="jaxring-accept", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the thread ask `expecting` again."""
        with contextlib.suppress(OSError):  # closed, or enough wake-ups are in the socket already
            self._wake.send(b"\0")

    def close(self) -> None:
        """Stop listening and drop all unauthenticated peers. Authenticated sockets are not touched."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.wake()
        if self._thread is None:
            self._close_sockets()
        elif self._thread is not threading.current_thread():
            self._thread.join(5.0)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(self._woken, selectors.EVENT_READ)
                while not self._closed.is_set():
                    self._step()
        except Exception:
            if not self._closed.is_set():
                logger.exception("The thread that accepts peers has failed: no peer can make a link to this process.")
        finally:
            self._close_sockets()

    def _step(self) -> None:
        enough = self._allowance.left() > 0 if self._open else self._allowance.wait() == 0
        self._admit(enough or self._expecting())
        waits = [] if self._open else [self._allowance.wait()]
        oldest = next(iter(self._pending.values()), None)
        if oldest is not None:
            waits.append(max(0.0, oldest.deadline - time.monotonic()))
        for key, _ in self._selector.select(min(waits, default=None)):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock in self._pending:
                self._advance(self._pending[sock])
            elif sock in self._sockets:
                self._accept_some(sock)
            elif sock is self._woken:
                sock.recv(4096)
        now = time.monotonic()
        while self._pending:
            oldest = next(iter(self._pending.values()))
            if oldest.deadline > now:
                break
            self._drop(oldest, f"its handshake was not complete within {HANDSHAKE_S:g} s")

    def _admit(self, admit: bool) -> None:
        if admit == self._open:
            return
        self._open = admit
        for sock in self._sockets:
            if admit:
                self._selector.register(sock, selectors.EVENT_READ)
            else:
                self._selector.unregister(sock)

    def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept(listening) or not (self._allowance.left() > 0 or self._expecting()):
                return

    def _accept(self, listening: socket.socket) -> bool:
        """Whether another connection may be there."""
        try:
            sock, address = listening.accept()
        except (BlockingIOError, ConnectionError):
            return False  # the peer closed it between the wake-up and now
        except OSError as error:
            logger.warning("cannot accept a connection: %s", error)
            if self._pending:
                self._drop(next(iter(self._pending.values())), "this process has no descriptor left")
            self._closed.wait(0.1)  # without a descriptor the socket stays readable, and the thread would spin
            return False
        self.came += 1
        self._allowance.spend()
        sock.setblocking(False)
        if len(self._pending) >= MAX_UNAUTHENTICATED:
            self._drop(next(iter(self._pending.values())), f"more than {MAX_UNAUTHENTICATED} unauthenticated peers")
        try:
            peer = _Unauthenticated(sock, str(address[0]), self._acceptance())
        except JoinError as error:
            logger.warning("dropped a connection from %s: %s", address[0], error)
            sock.close()
            return True
        self._pending[sock] = peer
        self._selector.register(sock, selectors.EVENT_READ)
        return True

    def _advance(self, peer: _Unauthenticated) -> None:
        try:
            data = peer.sock.recv(peer.acceptance.needed - len(peer.received))
            if not data:
                raise ValueError("it closed the connection")
            peer.received += data
            if len(peer.received) < peer.acceptance.needed:
                return
            answer = peer.acceptance.feed(bytes(peer.received))
            peer.received.clear()
            # A new connection's send buffer has room for these few bytes: after a partial send it is dropped.
            if answer and peer.sock.send(answer) != len(answer):
                raise ValueError("its socket did not take the answer")
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self._drop(peer, str(error))
            return
        if peer.acceptance.session is not None:
            self._forget(peer)
            self._allowance.give_back()
            peer.sock.setblocking(True)
            daemons.start("jaxring-link", self._on_peer, peer.sock, peer.acceptance.session)

    def _forget(self, peer: _Unauthenticated) -> None:
        del self._pending[peer.sock]
        self._selector.unregister(peer.sock)

    def _drop(self, peer: _Unauthenticated, why: str) -> None:
        self.refused += 1
        logger.info("dropped a connection from %s: %s", peer.name, why)
        self._forget(peer)
        peer.sock.close()

    def _close_sockets(self) -> None:
        for sock in [*self._sockets, *getattr(self, "_pending", ())]:
            sock.close()
        for name in ("_wake", "_woken"):
            if hasattr(self, name):
                getattr(self, name).close()


def _listening(entry: Address, ports: range) -> socket.socket:
    """A socket that listens on a free port of `ports`, or on any where that is empty. Raises JoinError."""
    family = socket.AF_INET6 if ":" in entry.address else socket.AF_INET
    for port in ports or (0,):
        try:
            return socket.create_server((entry.address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not ports:
                where = f"{entry.address} ({entry.interface})" + (f" port {port}" if port else "")
                raise JoinError(f"Cannot listen on {where}: {error}.") from error
    raise JoinError(
        f"Cannot listen on {entry.address} ({entry.interface}): all ports of "
        f"JAXRING_PORT_RANGE={ports.start}-{ports.stop - 1} are taken. Each process of this host needs one for each "
        "interface, on GPUs two: give a longer range."
    )
