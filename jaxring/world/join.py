"""Who takes part, and links between them: a World finds its peers and has data links made on demand."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING

from jaxring.errors import JoinError
from jaxring.settings import Settings
from jaxring.settings import settings as environment_settings
from jaxring.topology import detect, xml
from jaxring.world import handshake, identity, interfaces, links, rdma
from jaxring.world.dialling import connect
from jaxring.world.handshake import Acceptance, Session
from jaxring.world.identity import ProcessInfo
from jaxring.world.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.world.links import Native
    from jaxring.world.store import Store

logger = logging.getLogger("jaxring.world")

# Longest wait of an acceptor for the request and the answer's delivery.
_REQUEST_S = 30.0
# A slice of the wait for the secret, after which a closed World gives up.
_SECRET_SLICE_S = 2.0
# In place of a channel: the connection beside the data, one to each process that this one sends to.
_CONTROL = -1


class World:
    """The processes of one job as seen by process `process` of `count`. All methods are safe from any thread.

    The constructor publishes this process and starts to listen; it waits for nobody. Process 0 also makes the secret.
    `timeout_s` bounds each wait for a peer. `coordinator` ("host:port") tells which interface leads to the others.
    `generation` sets the keys of a World apart from those of an earlier one in the same store.
    """

    def __init__(
        self,
        store: Store,
        process: int,
        count: int,
        native: Native,
        timeout_s: float,
        *,
        coordinator: str = "",
        generation: int = 0,
        settings: Settings | None = None,
    ) -> None:
        if not 0 <= process < count <= identity.MAX_PROCESSES:
            raise JoinError(f"Process {process} of {count} is not possible (at most {identity.MAX_PROCESSES}).")
        self.process, self.count = process, count
        self._store, self._native, self._timeout_s = store, native, timeout_s
        self._settings = environment_settings() if settings is None else settings
        self._prefix = f"jaxring/world/{generation}/"
        self._lock = threading.Lock()
        self._infos: dict[int, ProcessInfo] = {}
        self._links: dict[tuple[int, int], concurrent.futures.Future[str]] = {}
        self._rings: dict[tuple[int, int], int] = {}
        self._accepted: set[tuple[int, int]] = set()
        self._secret = b""
        self._load_plugin()
        self._rails = rdma.rails(native, self._settings)
        self._listener = Listener(interfaces.choose(self._settings.socket_ifname, coordinator))
        try:
            self.own = identity.describe_self(
                process,
                self._listener.addresses,
                self._settings.fingerprint(),
                self._settings.hostid,
                rdma.kinds(self._rails),
            )
            if process == 0:
                self._secret = secrets.token_bytes(handshake.SECRET_BYTES)
                store.set(self._prefix + "secret", self._secret)
                if self._settings.topo_dump_file:
                    xml.write(detect.machine(self._settings), self._settings.topo_dump_file)
            store.set(f"{self._prefix}process/{process}", self.own.to_json())
            self._listener.start(self._acceptance, self._serve)
        except BaseException:
            self._listener.close()
            raise
        logger.info("%s of %d listens on %s", self.own, count, self.own.addresses)
        logger.info("RDMA: %s", self._rails or "none")

    def info(self, p: int) -> ProcessInfo:
        """What process `p` published, waiting for it. Raises JoinError: late, unreadable, or set up differently."""
        if not 0 <= p < self.count:
            raise JoinError(f"There is no process {p} among {self.count}.")
        if p == self.process:
            return self.own
        known = self._infos.get(p)
        if known is None:
            known = self._infos[p] = self._fetch(p)
        return known

    def link(self, p: int, channel: int) -> str:
        """Have a sending link from this process to `p` on `channel`; returns its transport. Idempotent.

        Raises JoinError. A failed link may be tried again.
        """
        if p == self.process:
            raise JoinError(f"Process {p} needs no link to itself.")
        if not 0 <= channel < links.MAX_CHANNELS:
            raise JoinError(f"Channel {channel} is not in 0..{links.MAX_CHANNELS - 1}.")
        self._once((p, _CONTROL), lambda: self._make_control(p))
        return self._once((p, channel), lambda: self._make(p, channel))

    def _once(self, key: tuple[int, int], make: Callable[[], str]) -> str:
        """What `make` returns, made by the first who asks. After a failure the next one tries again."""
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

    def transport(self, p: int) -> str:
        """How messages between this process and `p` travel: "shm" on one host, otherwise "plugin", "verbs" or "tcp".

        Raises JoinError where JAXRING_NET=IB asks for RDMA and the two have no kind of it in common.
        """
        peer = self.info(p)
        if peer.host_id == self.own.host_id and not self._settings.shm_disable:
            return "shm"
        if self._settings.net_plugin:
            return "plugin"
        if rdma.common(self.own.rdma, peer.rdma):
            return "verbs"
        if self._settings.net == "ib":
            raise JoinError(
                f"JAXRING_NET=IB asks for RDMA, and {self.own} and {peer} have no kind of it in common: "
                f"{', '.join(self.own.rdma)} here, {', '.join(peer.rdma)} there. JAXRING_IB_HCA and "
                "JAXRING_IB_GID_INDEX choose devices and addresses."
            )
        return "tcp"

    def close(self) -> None:
        """Stop listening. Links that exist are the engine's and stay."""
        self._listener.close()

    def _make(self, p: int, channel: int) -> str:
        peer = self.info(p)
        deadline = time.monotonic() + self._timeout_s
        transport = self.transport(p)
        how: int | links.Offering | None = None
        if transport in links.NAMES:
            how = self._offering(transport, rdma.common(self.own.rdma, peer.rdma), channel)
        elif transport == "shm":
            how = self._rings.get((p, channel))
            if how is None:  # a second try uses the first one's ring
                how = self._rings[p, channel] = self._native.shm_create(p, channel)
        sock, session = self._connect(peer, channel, deadline)
        with sock:
            try:
                words = links.dial(sock, session, self.own, peer, channel, self._native, how, deadline)
            except (OSError, ValueError) as error:
                raise JoinError(f"The link to {peer} on channel {channel} failed: {error}.") from error
        if words:
            logger.info("%s link to %s, channel %d: %s", links.NAMES[transport], peer, channel, words)
        logger.debug("sending link to %s, channel %d: %s", peer, channel, transport)
        return transport

    def _make_control(self, p: int) -> str:
        peer = self.info(p)
        deadline = time.monotonic() + self._timeout_s
        sock, session = self._connect(peer, 0, deadline)
        with sock:
            try:
                links.dial_control(sock, session, self.own, peer, self._native, deadline)
            except (OSError, ValueError) as error:
                raise JoinError(f"The control connection to {peer} failed: {error}.") from error
        return "control"

    def _load_plugin(self) -> None:
        name = self._settings.net_plugin
        if not name:
            return
        if self._settings.net:
            raise JoinError(
                f"JAXRING_NET={self._settings.net.upper()} and JAXRING_NET_PLUGIN={name} ask for two transports: "
                "unset one of them."
            )
        try:
            logger.info("network plugin %s", self._native.plugin_load(name))
        except RuntimeError as error:
            raise JoinError(f"JAXRING_NET_PLUGIN: {error}.") from error

    def _offering(self, transport: str, kind: str, channel: int) -> links.Offering | None:
        """This side of a link by an offering; None for the other transports. Channels take the rails in turn."""
        if transport == "plugin" and self._settings.net_plugin:
            return links.by_plugin(self._native)
        if transport != "verbs":
            return None
        fitting = [rail for rail in self._rails if rail.kind == kind]
        if not fitting:
            raise JoinError(f"{self.own} has no active RDMA port of kind {kind!r}.")
        return links.by_verbs(self._native, fitting[channel % len(fitting)], self._settings)

    def _connect(self, peer: ProcessInfo, channel: int, deadline: float) -> tuple[socket.socket, Session]:
        secret = self._get_secret(self._timeout_s)
        return connect(peer, self.process, secret, channel, self._timeout_s, deadline, lambda: self._listener.closed)

    def _acceptance(self) -> Acceptance:
        # Whoever may dial has read the secret, so it is there, unless a stranger comes before process 0 does.
        return Acceptance(self._get_secret(self._timeout_s), self.process, self.count)

    def _serve(self, sock: socket.socket, session: Session) -> None:
        with sock:
            try:
                self._answer(sock, session)
            except Exception as error:
                logger.warning("no link from process %d: %s", session.peer, error)
                if sock.fileno() < 0:
                    return  # the engine has the socket
                what = str(error) if isinstance(error, JoinError) else f"{type(error).__name__}: {error}"
                printable = "".join(c if c.isprintable() else " " for c in what)[:4096]
                with contextlib.suppress(OSError):  # the peer may be what failed
                    session.send(sock, {"error": printable}, time.monotonic() + _REQUEST_S)

    def _answer(self, sock: socket.socket, session: Session) -> None:
        request = links.Request(session.receive(sock, time.monotonic() + _REQUEST_S), session)
        claim = (session.peer, _CONTROL if request.transport == "control" else request.channel)
        with self._lock:
            if claim in self._accepted:
                what = "control connection" if request.transport == "control" else f"link on channel {claim[1]}"
                raise JoinError(f"Process {claim[0]} has a {what} already.")
            self._accepted.add(claim)
        try:
            peer = self.info(session.peer)
            deadline = time.monotonic() + _REQUEST_S
            how = self._offering(request.transport, request.kind, request.channel)
            words = links.accept(sock, session, request, self.own, peer, self._native, how, deadline)
        except BaseException:
            if sock.fileno() >= 0:  # otherwise the engine has the socket, and the link exists
                with self._lock:
                    self._accepted.discard(claim)
            raise
        if words:
            name = links.NAMES[request.transport]
            logger.info("%s link from %s, channel %d: %s", name, peer, request.channel, words)
        logger.debug("receiving link from %s, channel %d: %s", peer, request.channel, request.transport)

    def _fetch(self, p: int) -> ProcessInfo:
        try:
            raw = self._store.get(f"{self._prefix}process/{p}", self._timeout_s)
        except JoinError as error:
            raise JoinError(f"Process {p} of {self.count} has not joined: {error}") from error
        try:
            info = ProcessInfo.from_json(raw)
        except ValueError as error:
            raise JoinError(f"What process {p} published cannot be read ({error}): same jaxring version?") from error
        if info.index != p:
            raise JoinError(f"Process {p} published itself as process {info.index}.")
        if info.version != self.own.version:
            raise JoinError(
                f"The jaxring versions differ. {info}: {info.version}. {self.own}: {self.own.version}. Make them equal."
            )
        if info.settings != self.own.settings:
            theirs, ours = _differences(info.settings, self.own.settings)
            raise JoinError(f"The settings differ. {info}: {theirs}. {self.own}: {ours}. Make them equal.")
        return info

    def _get_secret(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while not self._secret:
            try:
                secret = self._store.get(self._prefix + "secret", min(_SECRET_SLICE_S, timeout_s))
            except JoinError:
                if self._listener.closed or time.monotonic() >= deadline:
                    raise
                continue
            if len(secret) != handshake.SECRET_BYTES:
                raise JoinError(f"The job's secret has {len(secret)} bytes instead of {handshake.SECRET_BYTES}.")
            self._secret = secret
        return self._secret


def _differences(theirs: str, ours: str) -> tuple[str, str]:
    """Of two fingerprints, what the other does not say."""
    one, other = theirs.split(" "), ours.split(" ")
    return " ".join(w for w in one if w not in other), " ".join(w for w in other if w not in one)
