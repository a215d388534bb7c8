"""Turns an authenticated connection into a data link: the request, its answer, and the calls of the native engine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError, MemoryLimitError
from jaxring.world import wire
from jaxring.world.identity import ProcessInfo, namespace
from jaxring.world.transports import OFFERED
from jaxring.world.transports.record import Offering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.world.connections.handshake import Session
    from jaxring.world.native import Native

MAX_CHANNELS = 4096
_MAX_FD = 1 << 30
_MAX_OFFER = 4096
_MEMORY = (
    "Free memory there, or raise the limit of that process or container (ulimit -a); JAXRING_BUFFSIZE and "
    "JAXRING_NSOCKS say how much is taken."
)
_REMEDY = "Run all processes of a host as the same user in one pid namespace, or set JAXRING_SHM_DISABLE=1 on all."


def dial(
    sock: socket.socket,
    session: Session,
    own: ProcessInfo,
    peer: ProcessInfo,
    channel: int,
    native: Native,
    how: int | Offering | None,
    deadline: float,
    tls: bool,
    path: str = "",
) -> str:
    """Ask `peer` for a link on an authenticated connection and complete this side of it. The socket is used up.

    `how`: the descriptor of the ring for a link by shared memory, None for TCP, or an offering. `path`: see
    `jaxring.world.failover`; not by shared memory. Returns the link in words, where there is something to say. Raises
    JoinError with what went wrong here or there, OSError, ValueError for nonsense.
    """
    request: dict[str, Any] = {"from": own.index, "token": own.token, "channel": channel, "transport": "tcp"}
    request |= {"path": path} if path else {}
    if isinstance(how, Offering):
        with _errors(how, peer, channel):
            request |= {
                "transport": how.transport.name,
                "kind": how.kind,
                "offer": how.offer(peer.index, channel, True),
            }
            answer = ask(sock, session, request, peer, f"the link on channel {channel}", deadline)
            how.prepare(peer.index, channel, True, wire.text(answer.get("offer"), "offer", _MAX_OFFER))
            left = max(0.0, deadline - time.monotonic())
            return how.finish(peer.index, channel, True, fd=release(sock), timeout_s=left, path=path)
    if how is not None:
        with memory(own, peer, channel):
            shown = {"ring_fd": how, "blocks_fd": native.blocks_fd(), "bell_fd": native.bell_fd()}
        request |= {"transport": "shm", "pid": own.pid, **shown}
    if how is None:
        with memory(own, peer, channel):
            native.tcp_prepare(peer.index, channel, True)
    answer = ask(sock, session, request, peer, f"the link on channel {channel}", deadline)
    if how is None:
        key, left = security(session, tls, deadline)
        with _encrypting(peer):
            native.tcp_attach(peer.index, channel, fd=release(sock), sending=True, key=key, timeout_s=left, path=path)
    else:
        native.shm_ring(peer.index, channel, memory_path(peer, answer.get("pid"), answer.get("bell_fd")))
    return ""


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
def memory(own: ProcessInfo, peer: ProcessInfo, channel: int) -> Iterator[None]:
    """Round the engine's getting memory for a link: MemoryLimitError where there is none."""
    try:
        yield
    except MemoryError as error:
        what = f"{own} has no memory for a link with {peer} on channel {channel}"
        raise MemoryLimitError(f"{what}: {error}. {_MEMORY}") from error


@contextlib.contextmanager
def _errors(how: Offering, peer: ProcessInfo, channel: int) -> Iterator[None]:
    try:
        yield
    except JoinError:
        raise
    except RuntimeError as error:
        which = how.transport
        raise JoinError(
            f"The {which.words} link with {peer} on channel {channel} failed: {error}. {which.mend}"
        ) from error


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
        known = ("shm", "tcp", "control", "resume", *OFFERED)
        if self.transport not in known:
            raise ValueError(f"transport is none of {', '.join(known)}")
        self.kind = wire.text(message.get("kind", ""), "kind", 64)
        self.offer = wire.text(message.get("offer", ""), "offer", _MAX_OFFER)
        self.path = wire.text(message.get("path", ""), "path", 64)
        self.attempt = wire.integer(message.get("attempt", 0), "attempt", 0, 1 << 62)
        names = ("pid", "ring_fd", "blocks_fd", "bell_fd")
        self.pid, self.ring_fd, self.blocks_fd, self.bell_fd = (message.get(name) for name in names)


def accept(
    sock: socket.socket,
    session: Session,
    request: Request,
    own: ProcessInfo,
    peer: ProcessInfo,
    native: Native,
    how: Offering | None,
    deadline: float,
    tls: bool,
) -> str:
    """Make the receiving side of the link that `peer` asks for, and answer. The socket is used up.

    `how` is this side's part where the request is for an offering. Returns as `dial` does. Raises JoinError or what
    the engine raises before the answer was sent, OSError where the peer is gone.
    """
    if request.token != peer.token:
        raise JoinError(f"{peer} has been restarted since it published itself.")
    channel = request.channel
    if how is not None:
        with _errors(how, peer, channel):
            offer = how.offer(peer.index, channel, False)
            how.prepare(peer.index, channel, False, request.offer)
            # The answer goes when this side can be reached.
            session.send(sock, {"ok": True, "offer": offer}, deadline)
            left = max(0.0, deadline - time.monotonic())
            return how.finish(peer.index, channel, False, fd=release(sock), timeout_s=left, path=request.path)
    if request.transport in ("tcp", "control"):
        if request.transport == "tcp":
            with memory(own, peer, channel):
                native.tcp_prepare(peer.index, channel, False)
        # The answer is sent first: as soon as the engine has the socket, everything on it is data.
        session.send(sock, {"ok": True}, deadline)
        key, left = security(session, tls, deadline)
        with _encrypting(peer):
            if request.transport == "control":
                native.control(peer.index, fd=release(sock), dialled=False, key=key, timeout_s=left, path=request.path)
            else:
                native.tcp_attach(
                    peer.index, channel, fd=release(sock), sending=False, key=key, timeout_s=left, path=request.path
                )
        return ""
    paths = [memory_path(peer, request.pid, fd) for fd in (request.ring_fd, request.blocks_fd, request.bell_fd)]
    with memory(own, peer, channel):
        native.shm_attach(peer.index, channel, *paths)
    session.send(sock, {"ok": True, "pid": own.pid, "bell_fd": native.bell_fd()}, deadline)
    return ""


def memory_path(peer: ProcessInfo, pid: Any, fd: Any) -> str:
    """The path at which this process can open descriptor `fd` of `peer`, tried out.

    Raises JoinError saying how to mend it where it cannot be opened or is not shared memory.
    """
    wire.integer(pid, "pid", 1, 1 << 31)
    if pid != peer.pid:
        raise JoinError(f"{peer} says its pid is {pid}, which is not the one it published.")
    if peer.pid_namespace != namespace("pid"):
        raise JoinError(f"Cannot share memory with {peer}: it is in another pid namespace. {_REMEDY}")
    path = f"/proc/{pid}/fd/{wire.integer(fd, 'descriptor', 0, _MAX_FD)}"
    try:
        target = str(pathlib.Path(path).readlink())
        if not target.startswith("/memfd:"):
            raise JoinError(f"Descriptor {fd} of {peer} is not shared memory but {target[:100]!r}.")
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise JoinError(
            f"Cannot share memory with {peer}: opening {path} failed ({error.strerror}). {_REMEDY}"
        ) from error
    return path


def release(sock: socket.socket) -> int:
    """Make the socket ready for the engine and give up its descriptor."""
    with contextlib.suppress(OSError):  # the peer may be gone already, which the engine will see
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock.detach()
