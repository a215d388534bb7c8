"""Connects to a peer: tries its addresses until one accepts and authenticates."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.world.connections import handshake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.waits import Wait

# The longest wait for one address to answer, and the pause between attempts.
_CONNECT_S = 10.0
_RETRY_S = 0.05
# How often a thread that connects checks whether the connection is still wanted.
_CHECK_EVERY_S = 0.5
_DROPPED = (
    " There is no answer at all: a firewall may drop the packets. It must let the processes of the job connect to each "
    "other, in both directions, on ports that the kernel chooses, or on those of JAXRING_PORT_RANGE."
)
# A process listens before it publishes its address and until it ends. A peer that refuses for so long has ended.
_REFUSED_S = 5.0


def connect(
    peer: ProcessInfo,
    own: int,
    secret: bytes,
    channel: int,
    timeout_s: float,
    deadline: float,
    closed: Callable[[], bool],
    wait: Wait,
    addresses: Sequence[tuple[str, str, int]] = (),
    each_s: float = _CONNECT_S,
) -> tuple[socket.socket, Session]:
    """An authenticated connection from process `own` to `peer`, made by `deadline` (time.monotonic seconds).

    `timeout_s` is named in the error. Each channel tries the interfaces from another one on, so that channels share
    the load, unless there are `addresses`, in their order. One that does not answer is given up after `each_s`. Each
    attempt that fails is written to `wait`. Raises JoinError, also when `closed()` or `wait` ends it,
    and at once where at each address a process listens that lacks the secret. Where that is so at some addresses and
    others cannot be reached, they are tried until the deadline, whose error has each reason. The error's cause is a
    ConnectionRefusedError where the peer has refused for so long that it has ended.
    """
    if not addresses:
        names = list(dict.fromkeys(name for name, _, _ in peer.addresses))
        first = channel % len(names)
        order = {name: place for place, name in enumerate(names[first:] + names[:first])}
        addresses = sorted(peer.addresses, key=lambda entry: order[entry[0]])
    refused_since = time.monotonic()
    while True:
        if closed():
            raise JoinError("This World is closed.")
        reasons = []
        refused = True
        dropped = True
        unauthenticated: list[JoinError] = []
        for _, address, port in addresses:
            sock = None
            try:
                limit = min(deadline, time.monotonic() + each_s)
                sock = _dial(address, port, limit, closed, wait)
                try:
                    return sock, handshake.authenticate(sock, secret, own, peer.index, limit)
                except JoinError as error:
                    # Another job's process: this host may have the address, too, as a bridge of containers has.
                    unauthenticated.append(error)
                    reasons.append(f"{address} port {port}: {error}")
                    dropped = False
                    wait.note("; ".join(reasons))
                    sock.close()
            except OSError as error:
                # Refused, reset or late. A busy acceptor drops connections, so another attempt may succeed.
                reasons.append(f"{address} port {port}: {error}")
                refused &= isinstance(error, ConnectionRefusedError)
                dropped &= sock is None and isinstance(error, TimeoutError)
                wait.note("; ".join(reasons))
                if sock is not None:
                    sock.close()
            except BaseException:
                if sock is not None:
                    sock.close()
                raise
        if len(unauthenticated) == len(addresses):
            raise unauthenticated[0]
        now = time.monotonic()
        refused_since = refused_since if refused else now
        if now - refused_since > _REFUSED_S:
            raise JoinError(
                f"{peer} does not listen any more, so it has ended: see its log for the cause. " + "; ".join(reasons)
            ) from ConnectionRefusedError()
        if now + _RETRY_S >= deadline:
            raise JoinError(
                f"Process {own} cannot reach {peer} within {timeout_s:g} s (JAXRING_JOIN_TIMEOUT). "
                + "; ".join(reasons)
                + ("." + _DROPPED if dropped else "")
            )
        time.sleep(_RETRY_S)


def _dial(address: str, port: int, limit: float, closed: Callable[[], bool], wait: Wait) -> socket.socket:
    """A connection made by `limit` (time.monotonic seconds). Raises OSError, or JoinError where the wait was ended."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(target)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        while code in (errno.EINPROGRESS, errno.EINTR):
            if closed():
                raise JoinError("This World is closed.")
            wait.check()
            left = limit - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            if poll.poll(1000 * min(left, _CHECK_EVERY_S)):
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                break
            wait.note(f"{address} port {port}: no answer yet")
        if code:
            raise OSError(code, os.strerror(code))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock
