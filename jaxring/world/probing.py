"""Measures the network between two processes of a job: round trips and transfers over a connection of their own.

Connections are authenticated as those of a job's links are, on the interfaces that these would take. Afterwards the
dialling process says what it wants in requests of 9 bytes, and the other does it until the connection ends: an echo;
take N bytes, then answer; give N bytes.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from jaxring.errors import JoinError
from jaxring.topology import interfaces
from jaxring.world import identity
from jaxring.world.connections import handshake
from jaxring.world.connections.dialling import connect
from jaxring.world.connections.handshake import Acceptance, Session, receive_exactly, send_all
from jaxring.world.connections.listener import Listener
from jaxring.world.published import Published
from jaxring.world.waits import Waits

if TYPE_CHECKING:
    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.store import Store

logger = logging.getLogger("jaxring.tune")

_REQUEST = struct.Struct(">cQ")
_ECHO, _TAKE, _GIVE = b"e", b"t", b"g"
_ROUND_TRIPS = 20
# A transfer is repeated with four times as many bytes until it takes so long: what sockets and queues hold passes at
# another speed than what follows.
_LONG_S = 0.05
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 24
_BLOCK = bytes(1 << 18)
# The longest that one pair may take.
PROBE_S = 60.0


class Probed(NamedTuple):
    """``latency``: seconds one way, half of the shortest round trip; ``there`` and ``back``: bytes per second."""

    latency: float
    there: float
    back: float


class Prober:
    """One of the ``count`` processes of a job that measure each other. A context manager.

    The constructor publishes this process in ``store`` and answers the probes of others from then on. ``coordinator``
    ("host:port") tells which interface leads to the others, where JAXRING_SOCKET_IFNAME does not.
    """

    def __init__(self, store: Store, process: int, count: int, coordinator: str, settings: Settings) -> None:
        self.process, self.count = process, count
        self._timeout_s = settings.join_timeout
        self._waits = Waits()
        self._listener = Listener(interfaces.choose(settings.socket_ifname, coordinator), settings.ports)
        try:
            own = identity.describe_self(
                process, self._listener.addresses, settings.fingerprint(), hostid_override=settings.hostid
            )
            self._published = Published(
                store,
                "jaxring/probe/",
                own,
                count,
                tuple(range(count)),
                settings.come_timeout,
                lambda: self._listener.closed,
                self._waits,
            )
            self._published.publish()
            self._listener.start(self._acceptance, self._answer, lambda: True)
        except BaseException:
            self._listener.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def info(self, process: int) -> ProcessInfo:
        """Waits for what that process published. Raises JoinError."""
        return self._published.info(process)

    def probe(self, process: int) -> Probed:
        """Measures the network between this process and that one. Raises JoinError that names it."""
        peer = self.info(process)
        begin, connect_s = time.monotonic(), min(self._timeout_s, PROBE_S)
        deadline = begin + PROBE_S
        with self._waits.waiting(f"{peer} to answer") as wait:
            sock, _ = connect(
                peer,
                self.process,
                self._published.secret(),
                0,
                connect_s,
                begin + connect_s,
                lambda: self._listener.closed,
                wait,
            )
        try:
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                trip = min(_timed(sock, _ECHO, 0, deadline) for _ in range(_ROUND_TRIPS))
                there, back = (_rate(sock, way, trip, deadline) for way in (_TAKE, _GIVE))
        except OSError as error:
            raise JoinError(f"Process {self.process} cannot measure the network to {peer}: {error}.") from error
        return Probed(trip / 2, there, back)

    def _acceptance(self) -> Acceptance:
        return handshake.Acceptance(self._published.secret(), self.process, self.count)

    def _answer(self, sock: socket.socket, session: Session) -> None:
        deadline = time.monotonic() + PROBE_S
        with sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    _serve(sock, deadline)
            except ConnectionResetError:
                return  # the peer has ended the connection, since it has measured enough
            except (OSError, ValueError) as error:
                logger.warning("a measurement by process %d has ended: %s", session.peer, error)


def _serve(sock: socket.socket, deadline: float) -> None:
    """Does what one request says. Raises ValueError for one that makes no sense."""
    kind, nbytes = _REQUEST.unpack(receive_exactly(sock, _REQUEST.size, deadline))
    if kind not in (_ECHO, _TAKE, _GIVE) or nbytes > _MOST_BYTES:
        raise ValueError(f"it asks for {kind!r} of {nbytes} bytes")
    if kind == _GIVE:
        _send(sock, nbytes, deadline)
    else:
        _receive(sock, nbytes, deadline)
        send_all(sock, b"\1", deadline)


def _timed(sock: socket.socket, kind: bytes, nbytes: int, deadline: float) -> float:
    """Seconds that a request takes."""
    begin = time.perf_counter()
    send_all(sock, _REQUEST.pack(kind, nbytes), deadline)
    if kind == _TAKE:
        _send(sock, nbytes, deadline)
    _receive(sock, nbytes if kind == _GIVE else 1, deadline)
    return time.perf_counter() - begin


def _rate(sock: socket.socket, kind: bytes, trip: float, deadline: float) -> float:
    """Bytes per second of the longest transfer, without the round trip ``trip`` that each of them has."""
    nbytes = _FIRST_BYTES
    while True:
        took = _timed(sock, kind, nbytes, deadline)
        if took >= _LONG_S or nbytes >= _MOST_BYTES:
            return nbytes / max(took - trip, took / 10)
        nbytes = min(4 * nbytes, _MOST_BYTES)


def _send(sock: socket.socket, nbytes: int, deadline: float) -> None:
    for begin in range(0, nbytes, len(_BLOCK)):
        send_all(sock, _BLOCK[: nbytes - begin], deadline)


def _receive(sock: socket.socket, nbytes: int, deadline: float) -> None:
    while nbytes:
        nbytes -= len(receive_exactly(sock, min(nbytes, len(_BLOCK)), deadline))
