"""The jobs of all peers: started once, asked one at a time."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait
from typing import TYPE_CHECKING, Any, Self

from jaxring.bench.member import ADDRESS, KEY, PID
from jaxring.bench.peers import MPICH, mpich_library
from jaxring.errors import JaxringError
from jaxring.launcher.job_environment import environment

if TYPE_CHECKING:
    from jaxring.bench.hosts import Hosts
    from jaxring.bench.peers import Peer

START_S = 120.0
ANSWER_S = 120.0
END_S = 10.0


def _ended(child: subprocess.Popen[bytes]) -> os.waitid_result | None:
    """How a process has ended, which stays unreaped: until it is reaped its id names it and its group."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)


def _wait_unreaped(child: subprocess.Popen[bytes], deadline: float) -> None:
    while child.returncode is None and time.monotonic() < deadline:
        if _ended(child) is not None:
            return
        time.sleep(0.01)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started, which is its group. Once it is reaped its id may name another process."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


class Crew:
    """The processes of one peer's job. A context manager: nothing of it outlives the context.

    The main thread enters it, since the processes end with the thread that has started them (`lifeline.die_with`).
    """

    def __init__(
        self, peer: Peer, processes: int, devices: int, extra: dict[str, str], hosts: Hosts | None = None
    ) -> None:
        self.peer, self.processes = peer, processes
        self.ranks = 0
        self.lost = ""  # why it was given up
        self._devices, self._extra, self._hosts = devices, extra, hosts
        self._children: list[subprocess.Popen[bytes]] = []
        self._members: list[Connection] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        # After Ctrl-C, or an error, there is nothing to wait for.
        deadline = time.monotonic() + (END_S if kind is None else 0.0)
        try:
            for member in self._members:
                member.close()
            for child in self._children:
                _wait_unreaped(child, deadline)
        finally:  # also where Ctrl-C ends the waiting
            for child in self._children:
                _end_group(child)
            self._stack.close()

    def give_up(self, why: str) -> None:
        """End its processes, which may be busy for nothing."""
        self.lost = why
        for child in self._children:
            _end_group(child)
        self.__exit__()

    def ask(self, name: str, arguments: Any = None) -> list[Any]:
        """The answers of all processes, in their order. JaxringError where one has gone or says nothing."""
        try:
            for member in self._members:
                member.send((name, arguments))
        except OSError:  # it has gone since the request before
            raise self._gone() from None
        answers: list[Any] = [None] * len(self._members)
        waiting = set(range(len(self._members)))
        deadline = time.monotonic() + ANSWER_S
        while waiting:
            ready = wait([self._members[i] for i in waiting], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise JaxringError(f"{self.peer.title} did not answer to {name!r} in {ANSWER_S:g} s. {self._said()}")
            for i in [i for i in waiting if self._members[i] in ready]:
                try:
                    answers[i] = self._members[i].recv()
                except (EOFError, OSError):
                    raise self._gone() from None
                waiting.discard(i)
        return answers

    def _gone(self) -> JaxringError:
        how = ""
        until = time.monotonic() + 1.0  # its connections close before it has ended
        while not how and time.monotonic() < until:
            time.sleep(0.01)
            there = [child for child in self._children if child.returncode is None]
            for end in filter(None, map(_ended, there)):
                exited = end.si_code == os.CLD_EXITED
                how = f" with exit code {end.si_status}" if exited else f", killed by signal {end.si_status}"
        return JaxringError(f"A process of {self.peer.title} ended{how}. {self._said()}")

    def _start(self) -> None:
        key = secrets.token_bytes(32)
        folder = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxring-bench-")))
        # A socket in the file system is the same in every network namespace. The folder takes its name away;
        # multiprocessing's Listener would do so too, and fail where Ctrl-C has the folder go first.
        address = str(folder / "c")
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(address)
        listener.listen(self.processes)
        self._stack.callback(listener.shutdown, socket.SHUT_RDWR)  # ends the thread that accepts
        # Kept bound, not listening, so that no other program gets the port: see `jaxring run`.
        reserved = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        here = "127.0.0.1" if self._hosts is None else self._hosts.address(0)
        coordinator = f"{here}:{reserved.getsockname()[1]}"
        if self.peer.kind == "torch":
            reserved.close()  # torch listens without SO_REUSEPORT
        self._log = folder / "log"
        controller = {ADDRESS: address, KEY: key.hex(), PID: str(os.getpid())}
        base = os.environ | controller | self._extra | dict(self.peer.environment)
        # -P: not from the current folder, which may be a checkout.
        command = [sys.executable, "-P", "-m", "jaxring.bench.member", self.peer.kind]
        with self._log.open("wb") as log:
            for process in range(1 if self.peer.launcher else self.processes):
                env = environment(base, coordinator, self.processes, process, self._devices)
                argv = [*self._launcher(folder), *command] if self.peer.launcher else command
                if self._hosts is not None:
                    argv = self._hosts.command(process * len(self._hosts.names) // self.processes, folder, argv)
                if self.peer.kind == "mpi":
                    env["LD_PRELOAD"] = "libmpi.so.40"
                if self.peer.launcher == MPICH:
                    # By this name all of MPICH's interface ask for it; Debian has another.
                    (folder / "libmpi.so.12").symlink_to(mpich_library())
                    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), env.get("LD_LIBRARY_PATH"))))
                self._children.append(
                    subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
                )
        self._accept(listener, key)

    def _launcher(self, folder: pathlib.Path) -> list[str]:
        if self.peer.launcher == MPICH:
            if self._hosts is not None:
                raise JaxringError(f"{self.peer.title} is measured on one host.")
            return [MPICH, "-n", str(self.processes)]
        if self._hosts is not None:
            return self._hosts.mpirun(self.processes, folder)
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(self.processes)]

    def _accept(self, listener: socket.socket, key: bytes) -> None:
        arrived: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        threading.Thread(target=_accept_all, args=(listener, key, arrived), daemon=True).start()
        deadline = time.monotonic() + START_S
        named: dict[int, Connection] = {}
        while len(named) < self.processes:
            if time.monotonic() > deadline or any(child.poll() is not None for child in self._children):
                raise JaxringError(f"{self.peer.title} did not start. {self._said()}")
            with contextlib.suppress(queue.Empty):
                self._members.append(arrived.get(timeout=0.1))
            for member in self._members:
                if member not in named.values() and member.poll():
                    with contextlib.suppress(EOFError, OSError):
                        process, self.ranks = member.recv()
                        named[process] = member
        self._members = [named[process] for process in sorted(named)]

    def _said(self) -> str:
        text = self._log.read_text(errors="replace").strip() if self._log.exists() else ""
        return "It said:\n" + "\n".join(text.splitlines()[-15:]) if text else "It said nothing."


def _accept_all(listener: socket.socket, key: bytes, arrived: queue.SimpleQueue[Connection]) -> None:
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:  # closed
            return
        connection = Connection(accepted.detach())
        try:
            deliver_challenge(connection, key)
            answer_challenge(connection, key)
        except (AuthenticationError, OSError, EOFError):  # not a member, or one that has ended
            connection.close()
            continue
        arrived.put(connection)
