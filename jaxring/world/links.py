"""Makes a link over an authenticated connection: the request, its answer, and the calls of the native engine."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JaxringError, JoinError, MemoryLimitError
from jaxring.world import wire
from jaxring.world.transports import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.native import Native
    from jaxring.world.transports.record import Offering

MAX_CHANNELS = 4096
_MAX_OFFER = 4096
_MEMORY = (
    "Free memory there, or raise the limit of that process or container (ulimit -a); JAXRING_BUFFSIZE and "
    "JAXRING_NSOCKS say how much is taken."
)


def dial(
    sock: socket.socket,
    session: Session,
    own: ProcessInfo,
    peer: ProcessInfo,
    channel: int,
    how: Offering,
    deadline: float,
    tls: bool,
    path: str = "",
) -> str:
    """Ask `peer` for a link on an authenticated connection and complete this side of it. The socket is used up.

    `path`: see `jaxring.world.failover`. Returns the link in words, where there is something to say. Raises JoinError
    with what went wrong here or there, OSError, ValueError for nonsense.
    """
    request = {"from": own.index, "token": own.token, "channel": channel, "transport": how.transport.name}
    request |= {"path": path} if path else {}
    with _making(how, own, peer, channel, True):
        request |= {"kind": how.kind, "offer": how.offer(peer.index, channel, True)}
        answer = ask(sock, session, request, peer, f"the link on channel {channel}", deadline)
        _prepare(how, peer, channel, True, wire.text(answer.get("offer"), "offer", _MAX_OFFER))
        return _finish(how, sock, session, peer, channel, True, deadline, tls, path)


def dial_control(
    sock: socket.socket,
    session: Session,
    own: ProcessInfo,
    peer: ProcessInfo,
    native: Native,
    deadline: float,
    tls: bool,
    path: str = "",
) -> None:
    """Make an authenticated connection the control connection with `peer`. `path` and errors as for `dial`."""
    request = {"from": own.index, "token": own.token, "channel": 0, "transport": "control"}
    request |= {"path": path} if path else {}
    ask(sock, session, request, peer, "the control connection", deadline)
    key, left = security(session, tls, deadline)
    with _encrypting(peer):
        native.control(peer.index, fd=release(sock), dialled=True, key=key, timeout_s=left, path=path)


def security(session: Session, tls: bool, deadline: float) -> tuple[bytes, float]:
    """What the engine needs for TLS: a key (b"" for none) and the seconds that are left."""
    return (session.stream_key() if tls else b""), max(0.0, deadline - time.monotonic())


@contextlib.contextmanager
def _encrypting(peer: ProcessInfo) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise JoinError(f"The connection with {peer} cannot be encrypted: {error}.") from error


@contextlib.contextmanager
def _making(how: Offering, own: ProcessInfo, peer: ProcessInfo, channel: int, sending: bool) -> Iterator[None]:
    """Round the making of a link. Where it fails this end is forgotten, and what the engine raises becomes a
    JoinError, or a MemoryLimitError where it got no memory."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(RuntimeError):  # closed, and then all is forgotten with the epoch
            how.forget(peer.index, channel, sending)
        if isinstance(error, MemoryError) and not isinstance(error, JaxringError):
            what = f"{own} has no memory for a link with {peer} on channel {channel}"
            raise MemoryLimitError(f"{what}: {error}. {_MEMORY}") from error
        if isinstance(error, RuntimeError) and not isinstance(error, JaxringError):
            words, mend = how.transport.words, how.transport.mend
            raise JoinError(
                f"The {words} link with {peer} on channel {channel} failed: {error}. {mend}".rstrip()
            ) from error
        raise


def _prepare(how: Offering, peer: ProcessInfo, channel: int, sending: bool, offer: str) -> None:
    how.transport.check(peer, offer)
    how.prepare(peer.index, channel, sending, offer)


def _finish(
    how: Offering,
    sock: socket.socket,
    session: Session,
    peer: ProcessInfo,
    channel: int,
    sending: bool,
    deadline: float,
    tls: bool,
    path: str,
) -> str:
    key, left = security(session, tls, deadline)
    return how.finish(peer.index, channel, sending, fd=release(sock), key=key, timeout_s=left, path=path)


def ask(
    sock: socket.socket, session: Session, request: dict[str, Any], peer: ProcessInfo, what: str, deadline: float
) -> dict[str, Any]:
    """The peer's answer to a request for ``what``. JoinError where it refuses, OSError, ValueError for nonsense."""
    session.send(sock, request, deadline)
    answer = answered(session.receive(sock, deadline), peer, what)
    if answer.get("ok") is not True:
        raise ValueError("the answer is neither ok nor an error")
    return answer


def answered(answer: dict[str, Any], peer: ProcessInfo, what: str) -> dict[str, Any]:
    """That answer of the peer's. Raises JoinError where it is a refusal of ``what``, ValueError for nonsense."""
    if "error" in answer:
        raise JoinError(f"{peer} refuses {what}: {wire.text(answer['error'], 'error', 4096)}")
    return answer


class Request:
    """A dialler's request, checked. Raises ValueError for nonsense."""

    def __init__(self, message: dict[str, Any], session: Session) -> None:
        wire.integer(message.get("from"), "from", session.peer, session.peer)
        self.token = wire.text(message.get("token"), "token", 64)
        self.channel = wire.integer(message.get("channel"), "channel", 0, MAX_CHANNELS - 1)
        self.transport = wire.text(message.get("transport"), "transport", 64)
        known = (*TRANSPORTS, "control", "resume")
        if self.transport not in known:
            raise ValueError(f"transport is none of {', '.join(known)}")
        # Where a link goes on over other ports, its transport.
        self.ports_of = wire.text(message.get("ports_of", ""), "ports_of", 64)
        if self.ports_of not in ("", *TRANSPORTS):
            raise ValueError(f"ports_of is none of {', '.join(TRANSPORTS)}")
        self.kind = wire.text(message.get("kind", ""), "kind", 64)
        self.offer = wire.text(message.get("offer", ""), "offer", _MAX_OFFER)
        self.path = wire.text(message.get("path", ""), "path", 64)
        self.attempt = wire.integer(message.get("attempt", 0), "attempt", 0, 1 << 62)


def accept(
    sock: socket.socket,
    session: Session,
    request: Request,
    own: ProcessInfo,
    peer: ProcessInfo,
    how: Offering,
    deadline: float,
    tls: bool,
) -> str:
    """Make the receiving side of the link that `peer` asks for, and answer. The socket is used up.

    `how` is this side. Returns as `dial` does. Raises JoinError or MemoryLimitError before the answer was sent, OSError
    where the peer is gone, ValueError for nonsense.
    """
    _check_token(request, peer)
    channel = request.channel
    with _making(how, own, peer, channel, False):
        offer = how.offer(peer.index, channel, False)
        _prepare(how, peer, channel, False, request.offer)
        # The answer goes when this side can be reached, and before the engine has the socket: all on it is data then.
        session.send(sock, {"ok": True, "offer": offer}, deadline)
        return _finish(how, sock, session, peer, channel, False, deadline, tls, request.path)


def accept_control(
    sock: socket.socket,
    session: Session,
    request: Request,
    peer: ProcessInfo,
    native: Native,
    deadline: float,
    tls: bool,
) -> None:
    """The other end of `dial_control`. Errors as for `accept`."""
    _check_token(request, peer)
    session.send(sock, {"ok": True}, deadline)
    key, left = security(session, tls, deadline)
    with _encrypting(peer):
        native.control(peer.index, fd=release(sock), dialled=False, key=key, timeout_s=left, path=request.path)


def _check_token(request: Request, peer: ProcessInfo) -> None:
    if request.token != peer.token:
        raise JoinError(f"{peer} has been restarted since it published itself.")


def release(sock: socket.socket) -> int:
    """Make the socket ready for the engine and give up its descriptor."""
    with contextlib.suppress(OSError):  # the peer may be gone already, which the engine will see
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock.detach()
