"""A module of this folder on several hosts: network namespaces with shaped links, one process on each."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import jax

from jaxring.bench.hosts import Hosts
from jaxring.launcher.environment import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORT = 19210


def on_hosts(module: str, hosts: int, rate: str, arguments: Sequence[str], limit_s: float, devices: int = 1) -> int:
    """Runs `python -m MODULE --join ARGUMENTS` on so many hosts, whose links have that rate. Returns the exit status.

    ``devices``: CPU devices of each process.

    Raises JaxringError without root and iproute2, and subprocess.TimeoutExpired after ``limit_s`` seconds.
    """
    with Hosts(hosts, rate=rate) as made, contextlib.ExitStack() as stack:
        print(made.describe(), flush=True)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxring-hosts-")))
        children = []
        for process in range(hosts):
            env = environment(os.environ, f"{made.address(0)}:{_PORT}", hosts, process, devices)
            command = [sys.executable, "-m", module, "--join", *arguments]
            children.append(subprocess.Popen(made.command(process, folder, command), env=env))
            stack.callback(children[-1].kill)
        return max(abs(child.wait(limit_s)) for child in children)


def join() -> None:
    """Makes this process the one of the job that `on_hosts` meant it to be."""
    job = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    address, count, process = (os.environ[name] for name in job)
    jax.distributed.initialize(address, int(count), int(process))
