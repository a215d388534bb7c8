"""Where flight records are: in a file, or in a living process's unnamed memory, which is reached through /proc."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import socket
import stat
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = "/memfd:jaxring-trace"
# Names that `new_prefix` begins and the engine completes. Files of JAXRING_TRACE_DIR have a time in place of the small
# number.
_COPY = re.compile(r"jaxring-.+-\d+-\d{1,3}\.trace")
KEPT = 20


def new_file(folder: str) -> str:
    """The name of a new record's file in JAXRING_TRACE_DIR, which is made if it is not there; "" without one."""
    if not folder:
        return ""
    pathlib.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(pathlib.Path(folder) / f"jaxring-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.trace")


def hint(file: str) -> str:
    """The sentence about the record in errors. The record is ``file``, or in memory where that is ""."""
    if file:
        return f"The flight record is {file}: `jaxring trace diff` of all processes' shows which process is behind."
    return (
        f"`jaxring trace dump {os.getpid()}` on {socket.gethostname()} copies this process's flight record while it "
        "lives, and JAXRING_TRACE_DIR keeps it: `jaxring trace diff` of all processes' shows which process is behind."
    )


def new_prefix(folder: str) -> str:
    """What the names of copies begin with, which are made on SIGUSR1 and at the end by an error: in the system's
    temporary folder. "" where the record itself is a file, in ``folder``."""
    if folder:
        return ""
    return str(pathlib.Path(tempfile.gettempdir()) / f"jaxring-{socket.gethostname()}-{os.getpid()}-")


def make_room(processes: int) -> None:
    """Before another copy: removes the oldest of this user's in the temporary folder, whichever process made them.

    KEPT stay, or as many as the job has processes, so that all of it can leave theirs.
    """
    found = []
    for path in pathlib.Path(tempfile.gettempdir()).glob("jaxring-*-*-*.trace"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if _COPY.fullmatch(path.name) and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                found.append((status.st_mtime_ns, path))
    for _, path in sorted(found)[: max(0, len(found) + 1 - max(KEPT, processes))]:
        with contextlib.suppress(OSError):
            path.unlink()


def find(pids: list[int] | None = None) -> Iterator[tuple[int, pathlib.Path]]:
    """(pid, path) of each record of these processes, or of all processes whose records this user may read."""
    found = (
        pids if pids is not None else sorted(int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit())
    )
    for pid in found:
        descriptors: list[pathlib.Path] = []
        with contextlib.suppress(OSError):  # it ended, or is another user's
            descriptors = sorted(pathlib.Path(f"/proc/{pid}/fd").iterdir())
        for path in descriptors:
            with contextlib.suppress(OSError):
                if str(path.readlink()).startswith(_MEMORY):
                    yield pid, path


def save(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a record into a new file of mode 0600, whose folder is made if it is not there. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(source.read_bytes())
