"""Shared memory, between processes of one host: each maps what the other's offer names by descriptors."""

from __future__ import annotations

import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.world import wire
from jaxring.world.identity import namespace
from jaxring.world.transports.record import Transport

if TYPE_CHECKING:
    from jaxring.settings import Settings
    from jaxring.world.identity import ProcessInfo

_MAX_FD = 1 << 30
_REMEDY = "Run all processes of a host as the same user in one pid namespace, or set JAXRING_SHM_DISABLE=1 on all."
# The process and its descriptors, as the engine writes and reads them.
_OFFER = re.compile(r"[0-9]{1,10}(?: [0-9]{1,10}){1,3}")


class Shm(Transport):
    name = "shm"
    words = "shared memory"
    preference = 10
    mend = _REMEDY
    within_host = True

    def joins(self, settings: Settings, own: ProcessInfo, peer: ProcessInfo) -> bool:
        return peer.host_id == own.host_id and not settings.shm_disable

    def check(self, peer: ProcessInfo, offer: str) -> None:
        if not _OFFER.fullmatch(offer):
            raise ValueError("the offer names no process and descriptors")
        pid, *fds = map(int, offer.split(" "))
        for fd in fds:
            memory_path(peer, pid, fd)


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


TRANSPORT = Shm()
