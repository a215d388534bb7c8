"""Shows a job to who holds its viewing key: `jaxring top` on another host. Nothing of the job can be changed this way.

Each process keeps what a viewer needs, its address and the key, in unnamed memory that only its user can open. `jaxring
top --share` on the job's host writes that to a file, which is taken to the other host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

from jaxring.errors import JaxringError, JoinError
from jaxring.world import wire
from jaxring.world.connections import handshake
from jaxring.world.identity import MAX_PROCESSES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from jaxring.world.connections.handshake import Session
    from jaxring.world.identity import ProcessInfo
    from jaxring.world.published import Published

MEMORY = "jaxring-viewing-access"
MAX_ACCESS_BYTES = 1 << 20
# A process answers so many viewers at a time, each with a copy of its record.
_AT_ONCE = 4
# The longest wait for a viewer's request, and for one of several addresses of a process to answer.
_REQUEST_S, _ADDRESS_S = 5.0, 2.0
_ADDRESSES = 64


@dataclasses.dataclass(frozen=True)
class Access:
    """What a viewer needs: the job's name, its viewing key, and where its processes listen: by index, (address, port)
    pairs."""

    job: str
    key: bytes
    processes: dict[int, tuple[tuple[str, int], ...]]

    def encode(self) -> bytes:
        """As a file holds it."""
        processes = {str(index): list(addresses) for index, addresses in self.processes.items()}
        return wire.encode({"job": self.job, "key": self.key.hex(), "processes": processes}) + b"\n"


def decode(data: bytes) -> Access:
    """What `Access.encode` has made. Raises ValueError."""
    found = wire.decode(data, MAX_ACCESS_BYTES)
    key = bytes.fromhex(wire.text(found.get("key"), "key", 2 * handshake.SECRET_BYTES))
    if len(key) != handshake.SECRET_BYTES:
        raise ValueError(f"its key has {len(key)} bytes instead of {handshake.SECRET_BYTES}")
    return Access(wire.text(found.get("job"), "job", 256), key, _processes(found.get("processes")))


def _processes(value: Any) -> dict[int, tuple[tuple[str, int], ...]]:
    if not isinstance(value, dict) or len(value) > MAX_PROCESSES:
        raise ValueError("processes is not a table of processes")
    found = {}
    for index, addresses in value.items():
        if not index.isdecimal() or not isinstance(addresses, list) or len(addresses) > _ADDRESSES:
            raise ValueError("a process's addresses are none")
        pairs = [
            (each[0], each[1]) if isinstance(each, list) and len(each) == 2 else (None, None) for each in addresses
        ]
        found[wire.integer(int(index), "process", 0, MAX_PROCESSES - 1)] = tuple(
            (wire.text(address, "address", 64), wire.integer(port, "port", 1, 65535)) for address, port in pairs
        )
    return found


class FlightService:
    """Shows one process's flight record to viewers, for its World. Safe from any thread.

    ``record`` returns the process's flight record; ``tls``: whether the job encrypts.
    """

    def __init__(self, record: Callable[[], bytes], job: str, tls: bool) -> None:
        self._record, self._job, self._tls = record, job, tls
        self._published: Published | None = None
        self._slots = threading.Semaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._fd = -1
        self._closed = False

    def open(self, published: Published, own: ProcessInfo, secret: bytes) -> None:
        """Leave what a viewer needs in this process's memory, where its user finds it; once."""
        with self._lock:
            if self._fd >= 0 or self._closed:
                return
            self._published = published
            access = Access(self._job, handshake.viewing_key(secret), _addresses([own]))
            self._fd = os.memfd_create(MEMORY, os.MFD_CLOEXEC)
            os.write(self._fd, access.encode())

    def close(self) -> None:
        """The key is no longer found here."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._closed = -1, True

    def _members(self) -> dict[str, Any]:
        there = self._published.there() if self._published is not None else []
        return {str(index): where for index, where in _addresses(there).items()}

    def answer(self, sock: socket.socket, session: Session, deadline: float) -> None:
        """Serve a viewer's one request. Raises JoinError for what is refused, ValueError for a malformed request,
        OSError."""
        # Before anything is read: a viewer that asks nothing holds a thread, too.
        if not self._slots.acquire(blocking=False):
            raise JoinError(f"{_AT_ONCE} viewers are being answered: look again.")
        try:
            request = session.receive(sock, min(deadline, time.monotonic() + _REQUEST_S))
            what = wire.text(request.get("view"), "view", 16)
            if what not in ("members", "record"):
                raise JoinError(f"There is no view {what!r} of a job.")
            if self._tls:
                raise JoinError(
                    "This job encrypts what it sends (JAXRING_NET=TLS), which a view from another host does not do: "
                    "look from its hosts."
                )
            data = self._record() if what == "record" else wire.encode(self._members())
            session.send(sock, {"ok": True, "bytes": len(data), "now": time.time_ns()}, deadline)
            session.send_bulk(sock, zlib.compress(data, 1), deadline)
        finally:
            self._slots.release()


def _addresses(infos: list[ProcessInfo]) -> dict[int, tuple[tuple[str, int], ...]]:
    return {info.index: tuple((address, port) for _, address, port in info.addresses[:_ADDRESSES]) for info in infos}


def look(access: Access, process: int, what: str, deadline: float) -> tuple[bytes, int]:
    """Ask a process for "record" or "members": what it says, and when, in ns since 1970 by its clock.

    Raises JoinError where it refuses or is not there by ``deadline`` (time.monotonic seconds).
    """
    import socket

    reasons = []
    addresses = access.processes[process]
    for number, (address, port) in enumerate(addresses, 1):
        # An interface that cannot be reached from here may drop what is sent to it.
        limit = deadline if number == len(addresses) else min(deadline, time.monotonic() + _ADDRESS_S)
        try:
            with socket.create_connection((address, port), max(0.01, limit - time.monotonic())) as sock:
                try:
                    session = handshake.authenticate(sock, access.key, handshake.VIEWER, process, limit)
                except JoinError as error:  # another job's process, where this host has the address, too
                    reasons.append(f"{address} port {port}: {error}")
                    continue
                # A process that refuses at once may have closed the connection; its answer is there still.
                with contextlib.suppress(ConnectionError):
                    session.send(sock, {"view": what}, deadline)
                answer = session.receive(sock, deadline)
                if "error" in answer:
                    raise JoinError(f"Process {process} refuses: {wire.text(answer['error'], 'error', 4096)}")
                size = wire.integer(answer.get("bytes"), "bytes", 0, handshake.MAX_BULK_BYTES)
                data = _decompressed(session.receive_bulk(sock, deadline), size)
                return data, wire.integer(answer.get("now"), "now", 0, 1 << 63)
        except (OSError, ValueError, zlib.error) as error:
            reasons.append(f"{address} port {port}: {error}")
    raise JoinError(f"Process {process} of {access.job} does not answer ({'; '.join(reasons)}).")


def _decompressed(data: bytes, size: int) -> bytes:
    """The ``size`` bytes that ``data`` holds. Raises ValueError for another number, zlib.error."""
    # At most one byte too many; a limit of 0 would be none.
    found = zlib.decompressobj().decompress(data, size + 1)
    if len(found) != size:
        raise ValueError(f"{'more' if len(found) > size else len(found)} bytes came instead of {size}")
    return found


def members(access: Access, deadline: float) -> Access:
    """The same with all processes of the job that have joined it. Raises JoinError where none of those that are known
    answers."""
    failed = ""
    for process in access.processes:
        try:
            found, _ = look(access, process, "members", deadline)
            return dataclasses.replace(access, processes=_processes(wire.decode(found, handshake.MAX_BULK_BYTES)))
        except (JoinError, ValueError) as error:
            failed = str(error)
    raise JoinError(failed or f"No process of {access.job} is known.")


def accesses(pid: int) -> list[Access]:
    """What the memory of a process of this host holds for viewers, as far as this user may read it."""
    found = []
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for path in sorted(pathlib.Path(f"/proc/{pid}/fd").iterdir()):
            with contextlib.suppress(OSError, ValueError):  # it was closed meanwhile
                if str(path.readlink()).startswith(f"/memfd:{MEMORY}"):
                    found.append(decode(path.read_bytes()))
    return found


def shared(pids: list[int]) -> Access:
    """What the memory of these processes of this host holds for viewers.

    Raises JaxringError where there is nothing, and where they are of several jobs.
    """
    by_key: dict[bytes, list[tuple[int, Access]]] = {}
    for pid in pids:
        for found in accesses(pid):
            by_key.setdefault(found.key, []).append((pid, found))
    if not by_key:
        raise JaxringError(
            "This job can be seen from here only: its processes have not met by a connection yet, or are one process."
        )
    if len(by_key) > 1:
        each = "; ".join(f"pids {', '.join(str(pid) for pid, _ in members)}" for members in by_key.values())
        raise JaxringError(
            f"{len(by_key)} jobs have the same coordinator's address, or one job has left some of these processes out "
            f"(jaxring.shrink): choose the processes by a pid of theirs: {each}."
        )
    found_here = [one for members in by_key.values() for _, one in members]
    processes = {index: where for one in found_here for index, where in one.processes.items()}
    return dataclasses.replace(found_here[0], processes=processes)
