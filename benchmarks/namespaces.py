"""A module of this folder on several hosts: network namespaces with shaped links, one process on each."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import jax

from benchmarks import turns
from jaxring.bench.hosts import Hosts
from jaxring.errors import JaxringError
from jaxring.launcher.job_environment import environment

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORT = 19210


def add_arguments(parser: argparse.ArgumentParser, rate: str, hosts: int | None = None) -> None:
    """Adds the options that `run_or_join` reads.

    ``rate`` is the default of each host's link, such as "1gbit". ``hosts`` is the default number of hosts; with None
    the process itself measures.
    """
    default = "" if hosts is None else f" (default: {hosts})"
    parser.add_argument(
        "--hosts", type=int, default=hosts, help=f"start a process on each of so many network namespaces{default}"
    )
    parser.add_argument("--rate", default=rate, help=f"of each host's link (default: {rate})")
    parser.add_argument("--join", action="store_true", help=argparse.SUPPRESS)


def run_or_join(
    module: str, arguments: argparse.Namespace, argv: Sequence[str] | None, limit_s: float = 600.0
) -> int | None:
    """The exit status of the same command on each of ``arguments.hosts``; None in a process that is to measure.

    That is one on such a host, which has joined the others' job then, or the command itself where it was not asked for
    hosts. ``arguments.devices``, where there is such an argument: CPU devices of each process.
    """
    devices = getattr(arguments, "devices", None)
    if arguments.join:
        _join()
        return None
    if not arguments.hosts:
        turns.use_devices(devices)
        return None
    words = sys.argv[1:] if argv is None else argv
    try:
        return _on_hosts(module, arguments.hosts, arguments.rate, words, limit_s, devices or 1)
    except (JaxringError, subprocess.TimeoutExpired) as error:
        print(f"{module}: {error}", file=sys.stderr)
        return 1


def _on_hosts(module: str, hosts: int, rate: str, words: Sequence[str], limit_s: float, devices: int) -> int:
    """Runs `python -m MODULE --join WORDS` on so many hosts, whose links have that rate. Returns the exit status.

    Raises JaxringError without root and iproute2, and subprocess.TimeoutExpired after ``limit_s`` seconds.
    """
    with Hosts(hosts, rate=rate) as made, contextlib.ExitStack() as stack:
        print(made.describe(), flush=True)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxring-hosts-")))
        children = []
        for process in range(hosts):
            env = environment(os.environ, f"{made.address(0)}:{_PORT}", hosts, process, devices)
            children.append(subprocess.Popen(made.command(process, folder, _joining(module, words)), env=env))
            stack.callback(children[-1].kill)
        return max(abs(child.wait(limit_s)) for child in children)


def _joining(module: str, words: Sequence[str]) -> list[str]:
    """The command on each host. What is behind a `--` among the words is no option, so `--join` is in front."""
    return [sys.executable, "-m", module, "--join", *words]


def _join() -> None:
    """Makes this process the one of the job that `_on_hosts` meant it to be."""
    job = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    address, count, process = (os.environ[name] for name in job)
    jax.distributed.initialize(address, int(count), int(process))
