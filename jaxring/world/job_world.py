"""A World: the processes of a job, how they find each other, and the links between them, which are made on demand."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, cast

from jaxring.errors import JoinError
from jaxring.settings import Settings
from jaxring.settings import settings as environment_settings
from jaxring.topology import calibration, interfaces
from jaxring.topology import order as orders
from jaxring.world import identity, links
from jaxring.world.answering import Answers
from jaxring.world.claims import CONTROL
from jaxring.world.closable import ClosableNative
from jaxring.world.connections.dialling import connect
from jaxring.world.connections.handshake import Acceptance, Session
from jaxring.world.connections.listener import Listener
from jaxring.world.failover import Failover
from jaxring.world.identity import ProcessInfo
from jaxring.world.published import Published
from jaxring.world.transports import Transports
from jaxring.world.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxring.world.native import Native
    from jaxring.world.store import Store
    from jaxring.world.viewers import ViewerService

logger = logging.getLogger("jaxring.world")


class World:
    """The processes of one job as seen by process `process` of `count`. All methods are safe from any thread.

    The constructor publishes this process and starts to listen; it does not wait for other processes.
    `come_s` (default: `timeout_s`) bounds each wait for a peer to publish itself, `timeout_s` each wait for a link to a
    peer that has; `waits` records all of them. `coordinator` ("host:port") tells which interface leads to the others.
    `epoch` keeps the keys of a World apart from those of an earlier one in the same store. `members` are the processes
    that are in it (default: all); the first of them makes the secret. With `serving` False no peer is answered before
    `serve`. `gpus` are the bus ids of the GPUs whose data it carries; NICs near them are chosen first.
    `viewer_service` answers those who look at the job from elsewhere; without it nobody can.
    """

    def __init__(
        self,
        store: Store,
        process: int,
        count: int,
        native: Native,
        timeout_s: float,
        *,
        come_s: float | None = None,
        waits: Waits | None = None,
        coordinator: str = "",
        epoch: int = 0,
        members: Sequence[int] | None = None,
        serving: bool = True,
        settings: Settings | None = None,
        gpus: Sequence[str] = (),
        viewer_service: ViewerService | None = None,
    ) -> None:
        if not 0 <= process < count <= identity.MAX_PROCESSES:
            raise JoinError(f"Process {process} of {count} is not possible (at most {identity.MAX_PROCESSES}).")
        self.process, self.count = process, count
        self.members = tuple(range(count)) if members is None else tuple(members)
        self._timeout_s = timeout_s
        self._come_s = timeout_s if come_s is None else come_s
        self._waits = Waits() if waits is None else waits
        self._closable = ClosableNative(native)
        self._native = cast("Native", self._closable)
        self._settings = environment_settings() if settings is None else settings
        self._lock = threading.Lock()
        self._links: dict[tuple[int, int], concurrent.futures.Future[str]] = {}
        self._dialling: set[socket.socket] = set()
        self._left = False
        self._silent: set[int] = set()
        self._transports = Transports(self._native, self._settings, gpus)
        order = orders.current()
        self._listener = Listener(interfaces.choose(self._settings.socket_ifname, coordinator), self._settings.ports)
        try:
            self.own = identity.describe_self(
                process,
                self._listener.addresses,
                self._settings.fingerprint(),
                self._settings.hostid,
                tuple((rail.kind, rail.name) for rail in self._transports.rails),
                calibration.current().digest,
                order.digest if order else orders.NONE,
            )
            prefix = f"jaxring/world/{epoch}/"
            self._published = Published(
                store,
                prefix,
                self.own,
                count,
                self.members,
                self._come_s,
                self._ended,
                self._waits,
            )
            self._published.publish()
            self._viewer_service = viewer_service
            self._failover = Failover(
                self.own, self._native, self._settings, self._dial_again, lambda: self._listener.closed
            )
            self._answers = Answers(
                self.own,
                self._native,
                self._settings,
                self.info,
                lambda: self._left,
                self._transports,
                self._failover,
                viewer_service,
            )
            if serving:
                self.serve()
        except BaseException:
            self._listener.close()
            raise
        logger.info("%s of %d listens on %s", self.own, count, self.own.addresses)
        logger.info("RDMA: %s", self._transports.rails or "none")

    def serve(self) -> None:
        """Answer peers that connect, from now on."""
        self._listener.start(self._acceptance, self._answers.serve, self._answers.claims.expecting)

    def expect(self, p: int, channels: int) -> None:
        """Process `p` is about to make this many links to this one: until then no connection is put off."""
        wanted = [(p, channel) for channel in (CONTROL, *range(channels))]
        if self._answers.claims.expect(wanted, time.monotonic() + self._come_s):
            self._listener.wake()

    def connections(self) -> tuple[int, int]:
        """How many connections were accepted so far, and how many of these refused."""
        return self._listener.came, self._listener.refused

    def absent(self) -> tuple[int, ...]:
        """Members that have not published themselves yet."""
        return self._published.absent()

    def info(self, p: int) -> ProcessInfo:
        """What process `p` published, waiting for it. Raises JoinError: late, unreadable, or set up differently."""
        return self._published.info(p)

    def transport(self, p: int) -> str:
        """How messages between this process and `p` travel, as `Transports.between` says."""
        return self._transports.between(self.own, self.info(p))

    def link(self, p: int, channel: int) -> str:
        """Have a sending link from this process to `p` on `channel`; returns its transport. Idempotent.

        Raises JoinError. A failed link may be tried again.
        """
        if p == self.process:
            raise JoinError(f"Process {p} needs no link to itself.")
        if not 0 <= channel < links.MAX_CHANNELS:
            raise JoinError(f"Channel {channel} is not in 0..{links.MAX_CHANNELS - 1}.")
        self._once((p, CONTROL), lambda: self._make_control(p))
        return self._once((p, channel), lambda: self._make(p, channel))

    def _once(self, key: tuple[int, int], make: Callable[[], str]) -> str:
        """What `make` returns. The first thread that asks calls it; after a failure the next thread tries again."""
        with self._lock:
            future = self._links.get(key)
            mine = future is None
            if future is None:
                future = self._links[key] = concurrent.futures.Future()
        if not mine:
            return future.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._links[key]
            future.set_exception(error)
            raise
        future.set_result(made)
        return made

    def refusing(self) -> set[int]:
        """Processes that were to be linked and have refused connections for five seconds: most likely they have ended.

        One that lives refuses, too, while it has closed this epoch of the job and has not entered the next one.
        """
        with self._lock:
            return set(self._silent)

    def leave(self, deadline: float) -> None:
        """Make no link any more, here or for a peer. Links that exist are the engine's and stay.

        They still go over to other paths, or to other RDMA ports, when theirs fail, here and for peers, until `close`.
        Nothing else reaches the engine when this returns; JoinError where that takes until after `deadline`
        (time.monotonic seconds). May be called again.
        """
        self._left = True
        self._end_dialling()
        if not self._listener.closed:
            self._closable.close(deadline, spare=("path", "link_"))

    def close(self, deadline: float | None = None) -> None:
        """Stop listening and dialling. Links that exist are the engine's and stay.

        With a `deadline` (time.monotonic seconds) nothing reaches the engine any more when this returns; JoinError
        where that takes longer. May be called again.
        """
        self._listener.close()
        if self._viewer_service is not None:
            self._viewer_service.close()
        self._end_dialling()
        if deadline is not None:
            self._closable.close(deadline)

    def _ended(self) -> bool:
        return self._left or self._listener.closed

    def _end_dialling(self) -> None:
        with self._lock:
            for sock in self._dialling:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _make(self, p: int, channel: int) -> str:
        peer = self.info(p)
        deadline = time.monotonic() + self._timeout_s
        transport = self.transport(p)
        how = self._transports.offering(self.own, peer, transport, channel)
        sock, session = self._connect(peer, channel, deadline)
        with sock, self._dials(sock):
            try:
                how.transport.ready(sock, self._settings)
                pairs = self._transports.pairs(self.own, peer, transport)
                path = self._failover.name(peer, pairs) if how.transport.by_addresses or pairs else ""
                address = str(sock.getpeername()[0])
                with self._failover.watching(path, peer, address, True, pairs, channel):
                    words = links.dial(sock, session, self.own, peer, channel, how, deadline, self._settings.tls, path)
            except (OSError, ValueError) as error:
                raise JoinError(f"The link to {peer} on channel {channel} failed: {error}.") from error
        if words:
            logger.info("%s link to %s, channel %d: %s", how.transport.words, peer, channel, words)
        logger.debug("sending link to %s, channel %d: %s", peer, channel, transport)
        return transport

    def _make_control(self, p: int) -> str:
        peer = self.info(p)
        deadline = time.monotonic() + self._timeout_s
        sock, session = self._connect(peer, 0, deadline)
        with sock, self._dials(sock):
            try:
                path, address = self._failover.name(peer), str(sock.getpeername()[0])
                with self._failover.watching(path, peer, address, False):
                    links.dial_control(sock, session, self.own, peer, self._native, deadline, self._settings.tls, path)
            except (OSError, ValueError) as error:
                raise JoinError(f"The control connection to {peer} failed: {error}.") from error
        return "control"

    @contextlib.contextmanager
    def _dials(self, sock: socket.socket) -> Iterator[None]:
        """Has `leave` and `close` end what waits for an answer on `sock`."""
        with self._lock:
            if self._ended():
                raise JoinError("This World is closed.")
            self._dialling.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._dialling.discard(sock)

    def _connect(self, peer: ProcessInfo, channel: int, deadline: float) -> tuple[socket.socket, Session]:
        secret = self._secret()
        with self._waits.waiting(f"{peer} to answer") as wait:
            try:
                return connect(peer, self.process, secret, channel, self._timeout_s, deadline, self._ended, wait)
            except JoinError as error:
                if isinstance(error.__cause__, ConnectionRefusedError):
                    with self._lock:
                        self._silent.add(peer.index)
                raise

    def _dial_again(
        self, peer: ProcessInfo, addresses: Sequence[tuple[str, str, int]], deadline: float, each_s: float
    ) -> tuple[socket.socket, Session]:
        def closed() -> bool:
            return self._listener.closed

        secret, left = self._secret(), deadline - time.monotonic()
        # No plan waits for it, so no error about a plan that is late is to name it.
        with Waits().waiting(f"{peer} to answer at another address") as wait:
            return connect(peer, self.process, secret, 0, left, deadline, closed, wait, addresses, each_s)

    def _acceptance(self) -> Acceptance:
        # Members have read the secret before they connect. Only an unauthenticated peer comes before it is there.
        return Acceptance(self._secret(), self.process, self.count)

    def _secret(self) -> bytes:
        secret = self._published.secret()
        if self._viewer_service is not None:
            self._viewer_service.open(self._published, self.own, secret)
        return secret
