"""The server of a process that starts others (`tests.starting`): `python server.py DESCRIPTOR ROOM`.

It imports JAX, then forks a process for each request that comes by the connection, and ends with the connection. A
process that is forked goes on at the end of this file, where nothing of a caller's is on its stack.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import signal
import socket
import sys
import warnings
from typing import Any

sys.path[0] = str(pathlib.Path(__file__).parent.parent.parent)

from tests.starting import child, popen, request  # noqa: E402


def imported() -> dict[str, Any]:
    """Imports JAX: the environment before, names of variables that were read meanwhile, and variables that were set."""
    before, read, kind = dict(os.environ), set(), type(os.environ)

    class Watched(kind):
        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

        def __contains__(self, name):
            read.add(name)
            return super().__contains__(name)

    os.environ.__class__ = Watched
    try:
        child.import_libraries()
    finally:
        os.environ.__class__ = kind
    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    assert len(threads) == 1, f"{len(threads)} threads after the import of JAX"
    made = {name: value for name, value in os.environ.items() if before.get(name) != value}
    return {"environ": before, "read": sorted(read), "set": made, "namespaces": request.namespaces()}


def serve(connection: socket.socket) -> dict[str, Any]:
    """Forks until the connection ends, and with it this process. Returns in each fork, which is what was asked."""
    while True:
        asked, descriptors = _receive(connection)
        if not descriptors:
            os._exit(0)
        between = fork()
        if between:
            for descriptor in descriptors:
                os.close(descriptor)
            os.waitpid(between, 0)
            continue
        between = os.getpid()
        if fork():
            os._exit(0)  # so the fork belongs to the process that asked
        connection.close()
        child.become(asked, descriptors, between, HELLO)
        return asked


def fork() -> int:
    """os.fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, of which there are none
        return os.fork()


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is asked, and descriptors; none where the connection has ended."""
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, 8, 250, socket.MSG_WAITALL)
        left, parts = int.from_bytes(head, "little"), []
        while left:
            parts.append(connection.recv(left))
            left -= len(parts[-1]) or left
        return json.loads(b"".join(parts)), list(descriptors)
    except (OSError, ValueError):
        return {}, []


CONNECTION = socket.socket(fileno=int(sys.argv[1]))
SERVER = sys.modules["__main__"]  # a fork has a module of that name for its own program
HELLO = imported()
child.PATH = sys.path[1:]
gc.collect()
gc.freeze()  # so that collections of forks do not write to what all share
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask
CONNECTION.sendall(json.dumps(HELLO).encode() + b"\n")

while True:
    ASKED = serve(CONNECTION)
    if not ASKED["starts"]:
        break
    OURS, CONNECTION = socket.socketpair()
    if fork():
        CONNECTION.close()
        popen.take_over(OURS, HELLO | {"namespaces": request.namespaces()})
        break
    OURS.close()
    child.serve_parent(CONNECTION.fileno(), ASKED["pid"])
child.begin(ASKED)
if child.run(request.Program(*ASKED["program"])):
    sys.exit(1)
