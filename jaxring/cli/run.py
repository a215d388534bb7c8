"""Start a job of several JAX processes on this host.

    jaxring run -n 4 --devices-per-process 2 train.py --steps 10

Each process finds jax.distributed initialised when the script begins, so the script needs no code for that; a call of
jax.distributed.initialize() in it does nothing. When one process fails, the others have 5 s to end and are then
terminated; the exit code is that of the first to fail, which is named in the end with its error and the place of it. A
process fails as soon as an exception ends its script, though it may exit later. Ctrl-C and SIGTERM end all processes.

With --restart a process that fails is started again and the others go on, for scripts that call jaxring.rebuild() and
jaxring.shrink(); all but process 0, which holds the coordination service of jax.distributed.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
from typing import TYPE_CHECKING

from jaxring.launcher.environment import environment
from jaxring.launcher.job import Command, Job, Restart
from jaxring.launcher.script import check_script

if TYPE_CHECKING:
    import argparse

HELP = "start a job of several processes on this host"
MAX_PROCESSES = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring run`."""
    parser.add_argument("-n", "--processes", type=_count, required=True, metavar="N", help="number of processes")
    parser.add_argument(
        "--devices-per-process",
        "--host-devices",
        type=_count,
        metavar="K",
        help="CPU devices of each process (default: what the environment says, else 1)",
    )
    parser.add_argument(
        "--output",
        choices=("all", "rank0"),
        default="all",
        help="all: every line of every process, with [rank] before it; rank0: process 0 writes straight to this "
        "terminal, so progress bars work, and the others are silent unless they fail",
    )
    parser.add_argument("--no-prefix", action="store_true", help="all processes write straight to this terminal")
    parser.add_argument(
        "--no-init",
        action="store_true",
        help="do not initialise jax.distributed: the script does. jax.distributed.initialize() takes what it is not "
        "given from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID; JAX alone reads the first only, so "
        "other launchers need num_processes= and process_id= in the call",
    )
    parser.add_argument(
        "--restart",
        type=_count,
        default=0,
        metavar="N",
        help="start processes other than 0 again when they fail, N times in all, and let the others go on "
        "(jax_enable_recoverability)",
    )
    parser.add_argument(
        "--restart-delay", type=float, default=1.0, metavar="SECONDS", help="wait before that (default: 1)"
    )
    parser.add_argument(
        "--install",
        choices=("lax", "whole"),
        help="have the script's collectives run on jaxring, which it need not import. lax: those of jax.lax, as by "
        "jaxring.install(); whole: also those that XLA's partitioner inserts, as by "
        "jaxring.install(whole_program=True) (JAXRING_INSTALL)",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", help="Python file to run in each process")
    parser.add_argument("arguments", nargs="...", metavar="ARGUMENT", help="passed on to the script")


def run(arguments: argparse.Namespace) -> int:
    """Run the job; returns its exit code. Raises JaxringError for a script that no process could run."""
    check_script(arguments.script, arguments.module)
    # The socket stays bound, not listening, so that no other program gets the port; the coordinator shares it, because
    # gRPC sets SO_REUSEPORT too.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        options = [flag for flag, given in (("--no-init", arguments.no_init), ("--module", arguments.module)) if given]
        restart = Restart(arguments.restart, arguments.restart_delay) if arguments.restart else None
        # -P: the current folder may hold modules by the names of those that the worker needs, such as a checkout's.
        worker = [sys.executable, "-P", "-m", "jaxring.launcher.worker", *options]
        commands = []
        for process in range(arguments.processes):
            env = environment(os.environ, address, arguments.processes, process, arguments.devices_per_process)
            if arguments.install:
                env["JAXRING_INSTALL"] = arguments.install
            last: list[str] = []
            if restart is not None:
                env["JAX_ENABLE_RECOVERABILITY"] = "1"
                last = ["--last", str(restart.read_end)] if process == 0 else []
            rest = [*last, str(os.getpid()), arguments.script, *arguments.arguments]
            commands.append(Command(functools.partial(_argv, worker, rest), env))
        return Job(commands, arguments.output, not arguments.no_prefix, restart).run()


def _argv(worker: list[str], rest: list[str], report: int) -> list[str]:
    return [*worker, "--report", str(report), *rest]


def _count(text: str) -> int:
    if not (re.fullmatch("[0-9]{1,4}", text) and 1 <= int(text) <= MAX_PROCESSES):
        raise ValueError(text)
    return int(text)


_count.__name__ = f"number (1 to {MAX_PROCESSES})"  # argparse names the type in its message
