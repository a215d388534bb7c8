"""A store in a directory, a native engine that only records, and a process that plays a peer."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import threading
import time

from jaxring.errors import JoinError
from jaxring.settings import load
from jaxring.world import World


class DirStore:
    """Keys are files of one directory; set whole, so a reader sees all of a value or nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)

    def set(self, key: str, value: bytes) -> None:
        part = self._part(key, value)
        try:
            os.link(part, self._path / key.replace("/", "@"))
        except FileExistsError:
            raise JoinError(f"{key} is set already.") from None
        finally:
            part.unlink()

    def replace(self, key: str, value: bytes) -> None:
        self._part(key, value).rename(self._path / key.replace("/", "@"))

    def list(self, prefix: str) -> dict[str, bytes]:
        begin = prefix.replace("/", "@")
        names = [path.name for path in self._path.iterdir() if path.name.startswith(begin)]
        found = [name for name in names if not name.endswith(".part")]
        return {name.removeprefix(begin).replace("@", "/"): (self._path / name).read_bytes() for name in found}

    def delete(self, folder: str) -> None:
        for name in self.list(f"{folder}/"):
            (self._path / f"{folder}/{name}".replace("/", "@")).unlink()

    def _part(self, key: str, value: bytes) -> pathlib.Path:
        part = self._path / f"{key.replace('/', '@')}.{threading.get_ident()}.{os.getpid()}.part"
        part.write_bytes(value)
        return part

    def get(self, key: str, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return (self._path / key.replace("/", "@")).read_bytes()
            except FileNotFoundError:
                if time.monotonic() >= deadline:
                    raise JoinError(f"Nobody set {key} within {timeout_s:g} s.") from None
                time.sleep(0.01)


class FakeNative:
    """Records each call; opens what it is told to open; owns and closes the descriptors it is given."""

    fail_tls = ""  # why TLS cannot be had

    def __init__(self, ports=()) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.sockets: dict[tuple[object, int, bool], socket.socket] = {}
        self.controls: list[socket.socket] = []
        self.changed = threading.Condition()
        self.fail_shm = self.no_memory = ""
        # How many handshakes of TLS fail, and what they wait for before they do.
        self.fail_handshakes = 0
        self.hold = threading.Event()
        self.hold.set()
        # RDMA ports; a link by them cannot be made where `fail_verbs` says why.
        self.ports = list(ports)
        self.fail_verbs = ""
        self.down: set[str] = set()  # devices
        # What `paths_lost` says next; the bytes that have come on a path; paths that are gone.
        self.lost: list[tuple[str, str]] = []
        self.received: dict[str, int] = {}
        self.gone: set[str] = set()
        self._fds: list[int] = []
        self._rings: dict[tuple[int, int], int] = {}
        self._making: dict[tuple[int, int, bool], str] = {}  # the transport of each end that is not finished
        self._closed = False
        self._doorbell, self._blocks = self._memory("doorbell"), self._memory("blocks")

    def _memory(self, name: str) -> int:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, 4096)
        self._fds.append(fd)
        return fd

    def _record(self, *call: object) -> None:
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()

    def wait_for(self, name: str, count: int = 1, timeout_s: float = 60) -> list[tuple[object, ...]]:
        """The calls of that name, once there are `count`."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.named(name)) >= count, timeout_s), self.calls
            return self.named(name)

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.calls if call[0] == name]

    def _shake(self, sock: socket.socket) -> None:
        with self.changed:
            fails = self.fail_handshakes > 0
            self.fail_handshakes -= fails
        if fails:
            sock.close()
            self.hold.wait(60)
            raise RuntimeError("the TLS handshake failed: nonsense")

    def tls_load(self) -> str:
        if self.fail_tls:
            raise RuntimeError(self.fail_tls)
        return "OpenSSL"

    def control(self, peer: int, *, fd: int, dialled: bool, key: bytes, timeout_s: float, path: str) -> None:
        assert not os.get_blocking(fd)
        sock = socket.socket(fileno=fd)
        self._shake(sock)
        sock.settimeout(60)
        with self.changed:
            self.controls.append(sock)
            if self._closed:  # a test may end before the acceptor's thread does
                sock.close()
        self._record("key", key)
        self._record("path", path)
        self._record("control", peer)

    def paths_lost(self, timeout_s):
        self._record("paths_lost")
        with self.changed:
            self.changed.wait_for(lambda: self.lost or self._closed, timeout_s)
            lost, self.lost = self.lost, []
            return None if self._closed else lost

    def lose(self, path, why="has acknowledged nothing for 0.3 s"):
        with self.changed:
            self.lost.append((path, why))
            self.changed.notify_all()

    def path_is_lost(self, path):
        return path not in self.gone

    def path_lives(self, path):
        return path not in self.gone

    def path_fail(self, path, why):
        self.gone.add(path)
        self._record("path_fail", path, why)

    def path_suspend(self, path, dialled, attempt):
        if path in self.gone:
            raise ValueError("there is no such connection any more")
        self._record("path_suspend", path, dialled, attempt)

    def path_drain(self, path, dialled, attempt):
        self._record("path_drain", path, dialled, attempt)
        return self.received.get(path, 0)

    def path_resume(self, path, dialled, attempt, *, fd, key, timeout_s, received, detour):
        sock = socket.socket(fileno=fd)
        sock.settimeout(60)
        self._keep((path, attempt, dialled), sock)
        self._record("key of the path", key)
        self._record("path_resume", path, dialled, attempt, received, detour)

    def verbs_ports(self):
        return self.ports, "" if self.ports else "there is no device"

    def connector_load(self, transport, what):
        self._record("connector_load", transport, what)
        return what

    def connector_offer(self, transport, peer, channel, sending, place):
        fail = {"verbs": self.fail_verbs, "shm": self.fail_shm if not sending else ""}.get(transport, "")
        if fail:
            raise RuntimeError(fail)
        if self.no_memory:
            raise MemoryError(self.no_memory)
        with self.changed:
            self._making[peer, channel, sending] = transport
        self._record(f"{transport}_offer", peer, channel, sending, *([place] if place else []))
        return self.shared(peer, channel) if transport == "shm" else f"offer of {place.get('device', transport)}"

    def shared(self, peer: int, channel: int) -> str:
        """An offer of shared memory. As in the engine, the next attempt has the ring of the one before."""
        if (peer, channel) not in self._rings:
            self._rings[peer, channel] = fd = self._memory("ring")
            os.pwrite(fd, f"ring to {peer} on {channel}".encode(), 0)
        return f"{os.getpid()} {self._doorbell} {self._rings[peer, channel]} {self._blocks}"

    def connector_prepare(self, peer, channel, sending, offer):
        transport = self._making[peer, channel, sending]
        if transport == "shm":
            pid, *fds = offer.split()
            doorbell, *others = (pathlib.Path(f"/proc/{pid}/fd/{fd}") for fd in fds)
            os.close(os.open(doorbell, os.O_RDWR))
            offer = "" if sending else others[0].read_bytes().rstrip(b"\0").decode()
        self._record(f"{transport}_prepare", peer, channel, sending, offer)

    def connector_finish(self, peer, channel, sending, *, fd, key, timeout_s, path):
        with self.changed:
            transport = self._making.pop((peer, channel, sending))
        sock = socket.socket(fileno=fd)
        if transport == "shm":  # which needs no connection
            sock.close()
        else:
            if transport == "tcp":
                self._shake(sock)
            assert not os.get_blocking(fd)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            sock.settimeout(60)
            self._keep((peer, channel, sending), sock)
        self._record(f"{transport}_finish", peer, channel, sending)
        if transport == "tcp":
            self._record("key", key)
        self._record("path", path)
        return "" if transport in ("shm", "tcp") else "in words"

    def connector_forget(self, peer, channel, sending):
        with self.changed:
            if self._making.pop((peer, channel, sending), None):
                self._record("connector_forget", peer, channel, sending)

    def link_offer(self, path, dialled, attempt, place):
        if path in self.gone:
            raise ValueError("there is no such link any more")
        if place["device"] in self.down:
            raise RuntimeError(f"{place['device']}: the port is not active")
        self._record("link_offer", path, dialled, attempt, place["device"])
        return f"offer of {place['device']}"

    def link_prepare(self, path, dialled, attempt, offer):
        self._record("link_prepare", path, dialled, attempt, offer)

    def link_try(self, path, attempt, timeout_s):
        self._record("link_try", path, attempt)

    def link_switch(self, path, dialled, attempt, received):
        self._record("link_switch", path, dialled, attempt, received)
        return "" if dialled else "5 3 0 0 0"

    def link_take_over(self, path, dialled, attempt, *, fd, detour):
        sock = socket.socket(fileno=fd)
        sock.settimeout(60)
        self._keep((path, attempt, dialled), sock)
        self._record("link_take_over", path, dialled, attempt, detour)

    def _keep(self, key: tuple[object, int, bool], sock: socket.socket) -> None:
        with self.changed:
            self.sockets[key] = sock
            if self._closed:  # a test may end before the acceptor's thread does
                sock.close()

    def close(self) -> None:
        with self.changed:
            self._closed = True
        for sock in [*self.sockets.values(), *self.controls]:
            sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


@contextlib.contextmanager
def other_job(folder, process):
    """The (address, port) of another job's process of that number; the job's store is in a new ``folder``."""
    folder.mkdir()
    with contextlib.closing(FakeNative()) as native:
        world = World(DirStore(folder), process, 2, native, 60, settings=load({}))
        world._published._secret = b"x" * 32
        with contextlib.closing(world):
            yield world.own.addresses[0][1:]


@contextlib.contextmanager
def black_hole():
    """An (address, port) that answers nothing: its queue of connections is full, so the kernel drops what comes."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            sock = held.enter_context(socket.socket())
            sock.settimeout(0.5)
            try:
                sock.connect(listener.getsockname())
            except TimeoutError:
                break
        yield listener.getsockname()
