"""Accepts connections and lets only those in that know the job's secret.

One thread serves all strangers with non-blocking sockets. Each has a deadline of its own, and there is a cap on their
number: the oldest goes first, because an honest peer is done after one round trip. So nobody who does not know the
secret can block those who do, start a thread, or take more memory than a few hundred bytes.

A flood of them is not to slow the job down, either. When more have come than an `Allowance` grants, nobody is accepted
for a while: connections wait in the kernel, and are refused there when its queue is full. Somebody of the job may be
among them, so this is done only while nobody is expected.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world import daemons
from jaxring.world.allowance import Allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.topology.interfaces import Address
    from jaxring.world.handshake import Acceptance, Session

logger = logging.getLogger("jaxring.world")

STRANGER_S = 10.0
MAX_STRANGERS = 256
_BACKLOG = 1024
# Accepted between two looks at those who have come before.
_AT_ONCE = 16


class _Stranger:
    def __init__(self, sock: socket.socket, name: str, acceptance: Acceptance) -> None:
        self.sock = sock
        self.name = name
        self.acceptance = acceptance
        self.received = bytearray()
        self.deadline = time.monotonic() + STRANGER_S


class Listener:
    """Listens on `where`, one port each, from the constructor on; serves from `start` until `close`.

    `acceptance` makes the acceptor's half of a handshake; `on_peer` gets each authenticated socket (blocking, owned by
    it) in a daemon thread of its own; `expecting` says whether somebody of the job should come. The constructor raises
    JoinError where no socket can be made. `came` and `refused` count connections.
    """

    def __init__(self, where: Sequence[Address]) -> None:
        self._sockets: list[socket.socket] = []
        self.addresses: list[tuple[str, str, int]] = []
        for entry in where:
            family = socket.AF_INET6 if ":" in entry.address else socket.AF_INET
            try:
                sock = socket.create_server((entry.address, 0), family=family, backlog=_BACKLOG)
            except OSError as error:
                self._close_sockets()
                raise JoinError(f"Cannot listen on {entry.address} ({entry.interface}): {error}.") from error
            sock.setblocking(False)
            self._sockets.append(sock)
            self.addresses.append((entry.interface, entry.address, sock.getsockname()[1]))
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._strangers: collections.OrderedDict[socket.socket, _Stranger] = collections.OrderedDict()
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
        """Look again whether somebody is expected."""
        with contextlib.suppress(OSError):  # it is closed, or has been woken often enough
            self._wake.send(b"\0")

    def close(self) -> None:
        """Stop listening and drop all strangers. Authenticated sockets are not touched."""
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
                logger.exception("the thread that accepts peers has failed; no peer can make a link to this process")
        finally:
            self._close_sockets()

    def _step(self) -> None:
        enough = self._allowance.left() > 0 if self._open else self._allowance.wait() == 0
        self._admit(enough or self._expecting())
        waits = [] if self._open else [self._allowance.wait()]
        oldest = next(iter(self._strangers.values()), None)
        if oldest is not None:
            waits.append(max(0.0, oldest.deadline - time.monotonic()))
        for key, _ in self._selector.select(min(waits, default=None)):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock in self._strangers:
                self._advance(self._strangers[sock])
            elif sock in self._sockets:
                self._accept_some(sock)
            elif sock is self._woken:
                sock.recv(4096)
        now = time.monotonic()
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            if oldest.deadline > now:
                break
            self._drop(oldest, f"it said nothing sensible within {STRANGER_S:g} s")

    def _admit(self, everybody: bool) -> None:
        if everybody == self._open:
            return
        self._open = everybody
        for sock in self._sockets:
            if everybody:
                self._selector.register(sock, selectors.EVENT_READ)
            else:
                self._selector.unregister(sock)

    def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept(listening) or not (self._allowance.left() > 0 or self._expecting()):
                return

    def _accept(self, listening: socket.socket) -> bool:
        """Whether there may be more."""
        try:
            sock, address = listening.accept()
        except (BlockingIOError, ConnectionError):
            return False  # it went away between the wake-up and now
        except OSError as error:
            logger.warning("cannot accept a connection: %s", error)
            if self._strangers:
                self._drop(next(iter(self._strangers.values())), "descriptors are short")
            self._closed.wait(0.1)  # without descriptors the socket stays readable, and this would spin
            return False
        self.came += 1
        self._allowance.spend()
        sock.setblocking(False)
        if len(self._strangers) >= MAX_STRANGERS:
            self._drop(next(iter(self._strangers.values())), "too many strangers at once")
        try:
            stranger = _Stranger(sock, str(address[0]), self._acceptance())
        except JoinError as error:
            logger.warning("dropped a connection from %s: %s", address[0], error)
            sock.close()
            return True
        self._strangers[sock] = stranger
        self._selector.register(sock, selectors.EVENT_READ)
        return True

    def _advance(self, stranger: _Stranger) -> None:
        try:
            data = stranger.sock.recv(stranger.acceptance.needed - len(stranger.received))
            if not data:
                raise ValueError("it closed the connection")
            stranger.received += data
            if len(stranger.received) < stranger.acceptance.needed:
                return
            answer = stranger.acceptance.feed(bytes(stranger.received))
            stranger.received.clear()
            # A new connection's send buffer holds these few bytes; a partial send means that it is not worth keeping.
            if answer and stranger.sock.send(answer) != len(answer):
                raise ValueError("it does not read")
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            self._drop(stranger, str(error))
            return
        if stranger.acceptance.session is not None:
            self._forget(stranger)
            self._allowance.give_back()
            stranger.sock.setblocking(True)
            daemons.start("jaxring-link", self._on_peer, stranger.sock, stranger.acceptance.session)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.sock]
        self._selector.unregister(stranger.sock)

    def _drop(self, stranger: _Stranger, why: str) -> None:
        self.refused += 1
        logger.info("dropped a connection from %s: %s", stranger.name, why)
        self._forget(stranger)
        stranger.sock.close()

    def _close_sockets(self) -> None:
        for sock in [*self._sockets, *getattr(self, "_strangers", ())]:
            sock.close()
        for name in ("_wake", "_woken"):
            if hasattr(self, name):
                getattr(self, name).close()
