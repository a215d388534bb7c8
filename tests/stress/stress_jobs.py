"""Starts worker processes for the tests beside it: alone or as a job, here or in network namespaces.

Outputs go to files, so that no worker ever waits for a reader. Whatever is left is killed, by pid, when a `Job` ends.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple, Self

from tests import ROOT, starting

HERE = pathlib.Path(__file__).parent
PREFIXES = ("JAXRING_", "JAX_", "PJRT_", "TF_", "GLOO_", "PYTHON")


class Result(NamedTuple):
    """How a process ended. ``code`` is negative for a signal, None where it had to be killed for being late."""

    code: int | None
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err[-6000:]}"


def environment(devices: int = 1, **extra: str) -> dict[str, str]:
    """A worker's environment: `devices` CPU devices, of the caller's settings XLA_FLAGS alone; `extra` come on top."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    return base | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        # A launch that waits for one of jaxlib's 32 slots per device holds a thread of its pool, and every thread
        # that dispatches may wait on every device: four such threads on fewer than 5 x devices hang, lax.psum too.
        "PJRT_NPROC": str(8 * devices),
        "JAXRING_TIMEOUT": "100",
        "JAXRING_JOIN_TIMEOUT": "100",
        **extra,
    }


class Job:
    """Processes that are started one by one and ended together at the end of the ``with`` block."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(
        self, command: list[str], env: dict[str, str], host: starting.Host | None = None
    ) -> subprocess.Popen[bytes]:
        """`host`: what the command does, where that is to run Python on a host."""
        name = f"process{len(self._processes)}"
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            process = starting.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, host=host)
        self._processes.append(process)
        return process

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def text(self, index: int) -> str:
        """What process `index` has printed so far."""
        return pathlib.Path(f"{self.folder}/process{index}.out").read_text(errors="replace")

    def wait_for_line(self, index: int, begin: str, timeout_s: float = 100) -> str:
        """The first line of process `index` that begins so, once it is there whole."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._processes[index].poll() is not None
            for line in self.text(index).splitlines(keepends=True):
                if line.startswith(begin) and line.endswith("\n"):
                    return line.rstrip("\n")
            assert not ended, f"process {index} ended before it said {begin!r}\n{self}"
            assert time.monotonic() < deadline, f"process {index} did not say {begin!r}\n{self}"
            time.sleep(0.02)

    def wait(self, timeout_s: float = 150) -> list[Result]:
        """All ends; one that is late is asked for its stacks (by SIGABRT, with faulthandler on) and then killed."""
        deadline = time.monotonic() + timeout_s
        late = set()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
                continue
            late.add(process)
        for process in late:
            process.send_signal(signal.SIGABRT)
        for process in late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        self.kill()
        return [self._result(i, process in late) for i, process in enumerate(self._processes)]

    def _result(self, index: int, late: bool) -> Result:
        err = pathlib.Path(f"{self.folder}/process{index}.err").read_text(errors="replace")
        return Result(None if late else self._processes[index].returncode, self.text(index), err)

    def __str__(self) -> str:
        return "\n".join(f"=== process {i}: {self._result(i, False)}" for i in range(len(self._processes)))


@contextlib.contextmanager
def coordinator_port(address: str = "127.0.0.1"):
    """A port that nobody else is given: bound, not listening; gRPC shares it by SO_REUSEPORT."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((address, 0))
        yield reserved.getsockname()[1]


def member(env: dict[str, str], coordinator: str, processes: int, process: int) -> dict[str, str]:
    """`env` as that of process `process` of a job; the worker calls jaxring.world.launch.initialize()."""
    return env | {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(process),
    }


def run_job(
    folder: pathlib.Path,
    arguments: list[str],
    processes: int = 1,
    devices: int = 1,
    timeout_s: float = 150,
    **extra: str,
) -> list[str]:
    """Runs `python ARGUMENTS` as a job on this host; the outputs of its processes, all of which end well."""
    env = environment(devices, **extra)
    with Job(folder) as job, coordinator_port() as port:
        for process in range(processes):
            own = member(env, f"127.0.0.1:{port}", processes, process) if processes > 1 else env
            job.start([sys.executable, "-X", "faulthandler", *arguments], own)
        results = job.wait(timeout_s)
        assert all(result.code == 0 for result in results), str(job)
        return [result.out for result in results]
