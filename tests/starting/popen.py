"""subprocess's Popen and run, which have a server fork what Python is to run.

A fork is made a child of this process by the kernel: it is a grandchild of the server, whose parent ends at once, and
meanwhile this process is the one to which such orphans are given.
"""

from __future__ import annotations

import array
import ctypes
import inspect
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import threading
from typing import Any

from tests.starting import request

_PR_SET_CHILD_SUBREAPER = 36
_START_S = 100.0
_ROOT = pathlib.Path(__file__).parent.parent.parent
# Servers have different seeds for the hashes of strings, as processes that are started have. They take turns, so that
# neighbouring ranks of a test's job differ; those of a launcher that is a fork itself are forks of one server.
_SERVERS = 2
_SWITCH = "TEST_FORKS"
_REAL = subprocess.Popen


class Server:
    """The end of a server's connection in the process that asks it. It ends when this is closed by all who have it."""

    def __init__(
        self, connection: socket.socket, hello: dict[str, Any], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._connection, self._hello, self._process = connection, hello, process

    @classmethod
    def started(cls) -> Server:
        """A new one, a child of this process."""
        ours, its = socket.socketpair()
        with its:
            env = {name: value for name, value in os.environ.items() if not _not_for_servers(name)}
            env |= {"OPENBLAS_NUM_THREADS": "1", "TEST_SERVER_ROOM": " " * request.ROOM}
            command = [sys.executable, str(_ROOT / "tests" / "starting" / "server.py"), str(its.fileno())]
            process = _REAL(
                [*command, " " * request.ROOM], env=env, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], cwd="/"
            )
        return cls(ours, json.loads(_line(ours)), process)

    def may(self, env: dict[str, str]) -> bool:
        """Whether a fork of it can be a process with this environment, started here."""
        hello = self._hello
        return hello["namespaces"] == request.namespaces() and request.same_start(
            hello["set"] | env, hello["set"] | hello["environ"], hello["read"]
        )

    def start(self, asked: dict[str, Any], descriptors: list[int]) -> int:
        """The pid of a new child of this process; OSError where the child could not become what was asked."""
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb") as replies:
            try:
                text = json.dumps(asked).encode()
                passed = array.array("i", [writes, *descriptors])
                _set_reaper(True)
                try:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
                    self._connection.sendmsg([len(text).to_bytes(8, "little")], ancillary)
                    self._connection.sendall(text)
                finally:
                    os.close(writes)
                if not select.select([replies], [], [], _START_S)[0]:
                    raise TimeoutError(f"no process after {_START_S:g} s")
                reply = json.loads(replies.read() or b"{}")
            finally:
                _set_reaper(False)
        if not reply:
            raise ConnectionResetError("the server of tests/starting has ended, or its child before it began")
        if "failed" in reply:
            os.waitpid(reply["pid"], 0)
            raise RuntimeError(reply["failed"])
        if "errno" in reply:
            os.waitpid(reply["pid"], 0)
            raise OSError(reply["errno"], os.strerror(reply["errno"]), reply["file"])
        return int(reply["pid"])

    @property
    def pid(self) -> int:
        """Its pid; -1 for that of a fork, which ends by itself."""
        return -1 if self._process is None else self._process.pid

    def close(self) -> None:
        """End it, if no fork of this process has the connection, too."""
        self._connection.close()
        if self._process is not None:
            self._process.wait()


class _Servers:
    """Those of this process. A fork of it has none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._servers: list[Server] = []
        self._most, self._turn = _SERVERS, 0
        os.register_at_fork(after_in_child=self._forget)

    def given(self, server: Server) -> None:
        """The only one there will be."""
        self._servers, self._most = [server], 1

    def next(self) -> Server | None:
        """Whose turn it is."""
        self._turn += 1
        if len(self._servers) < self._most:
            self._servers.append(Server.started())
            return self._servers[-1]
        return self._servers[self._turn % self._most] if self._most else None

    def all(self) -> list[int]:
        """The pids of those that this process has started and not lost."""
        return [server.pid for server in self._servers]

    def close(self) -> None:
        """End all, if no fork of this process has their connections, too. There will be others when they are needed."""
        for server in list(self._servers):
            self.lost(server)

    def lost(self, server: Server) -> None:
        """It has ended."""
        server.close()
        self._servers.remove(server)
        if self._most == 1:
            self._most = 0

    def _forget(self) -> None:
        for server in self._servers:
            server.close()
        self._servers, self._most, self.lock = [], 0, threading.Lock()


servers = _Servers()


def take_over(connection: socket.socket, hello: dict[str, Any]) -> None:
    """subprocess.Popen of this process is ours, by this server alone."""
    servers.given(Server(connection, hello))
    subprocess.Popen = Popen


class Popen(_REAL):
    """subprocess.Popen, by a fork where that can be the same.

    `forked` says whether it is one. `starts`: whether it may start processes that import JAX; None for what its command
    says (`request.starts_others`). `host`: where a fork is to be, and what it is to run there, for a command that does
    both itself.
    """

    forked = False

    def __init__(self, *args: Any, starts: bool | None = None, host: request.Host | None = None, **kwargs: Any) -> None:
        self._starts, self._host = starts, host
        super().__init__(*args, **kwargs)

    def _execute_child(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(_REAL._execute_child).bind(self, *args, **kwargs).arguments
        asked = _asked(given if self._host is None else given | {"args": self._host.argv})
        if asked is not None:
            asked["host"] = self._host
            asked["starts"] = request.starts_others(asked["argv"]) if self._starts is None else self._starts
            with servers.lock:
                self.forked = self._fork(asked, given)
        if not self.forked:
            super()._execute_child(*args, **kwargs)

    def _fork(self, asked: dict[str, Any], given: dict[str, Any]) -> bool:
        server = servers.next()
        if server is None or not server.may(asked["env"]):
            return False
        targets = [0, 1, 2, *sorted({int(each) for each in given["pass_fds"]} - {0, 1, 2})]
        sources = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        sources = [i if fd == -1 else fd for i, fd in enumerate(sources)] + targets[3:]
        try:
            self.pid = server.start(asked | {"targets": targets}, sources)
        except ConnectionError:
            servers.lost(server)
            return False
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[end] for end in ends))
        return True


def run(
    args: Any,
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **kwargs: Any,
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run by `Popen`, whose `starts` may be given, too."""
    kwargs |= {"stdin": subprocess.PIPE} if input is not None else {}
    kwargs |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(args, **kwargs) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _asked(given: dict[str, Any]) -> dict[str, Any] | None:
    """What the server is told of a call of subprocess.Popen; None where a fork cannot be it."""
    others = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
    if any(given[name] for name in others) or not given["close_fds"] or not given["restore_signals"]:
        return None
    if isinstance(given["args"], str | bytes | os.PathLike) or given["umask"] >= 0 or os.environ.get(_SWITCH) == "0":
        return None
    argv = [os.fsdecode(each) for each in given["args"]]
    env = os.environ if given["env"] is None else given["env"]
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
    cwd = os.getcwd() if given["cwd"] is None else os.path.abspath(os.fsdecode(given["cwd"]))  # noqa: PTH100, PTH109
    size = sum(len(name) + len(value) + 2 for name, value in env.items())
    if not argv or any("\0" in each for each in (*argv, *env.values())) or size > request.ROOM:
        return None
    program = request.program(argv, env, cwd)
    if program is None or request.customized(env):
        return None
    same = None if given["start_new_session"] else os.getpgrp()
    return request.inherited() | {
        "program": program,
        "argv": argv,
        "env": env,
        "cwd": cwd,
        "session": given["start_new_session"],
        "group": same if given["process_group"] < 0 else given["process_group"],
    }


def _not_for_servers(name: str) -> bool:
    """What a fork sees to itself, and what JAX sets where it is imported, as it may have been here."""
    mine = (
        "COVERAGE_",
        "TEST_",
        "TMPDIR",
        "JAXRING_",
        "JAX_",
        "XLA_",
        "PJRT_",
        "TF_CPP_MIN_LOG_LEVEL",
        "TPU_SKIP_MDS_QUERY",
    )
    return name in request.SETTABLE or name.startswith(mine)


def _set_reaper(on: bool) -> None:
    """Whether orphans among the processes that descend from this one become children of it."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _line(connection: socket.socket) -> bytes:
    """One line; what is not there in time is an error of the server's, which has said it on standard error."""
    read = b""
    while not read.endswith(b"\n"):
        if not select.select([connection], [], [], _START_S)[0]:
            raise TimeoutError(f"the server of tests/starting said nothing in {_START_S:g} s")
        some = connection.recv(1 << 16)
        if not some:
            raise RuntimeError("the server of tests/starting ended at its start")
        read += some
    return read
