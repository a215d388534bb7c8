"""Start a job of several JAX processes, on this host or on several.

    jaxring run -n 4 --devices-per-process 2 train.py --steps 10
    jaxring run --hosts a,b -n 4 train.py                 4 processes on each host, started by ssh
    jaxring run --nnodes 2 --node-rank 0 --coordinator a:4321 -n 4 train.py      the same by hand: here on a, and
    jaxring run --nnodes 2 --node-rank 1 --coordinator a:4321 -n 4 train.py      on b

Each process finds jax.distributed initialised when the script begins, so the script needs no code for that; a call of
jax.distributed.initialize() in it does nothing. When one process fails, the others have 5 s to end and are then
terminated; the exit code is that of the first to fail, which is named in the end with its error and the place of it. A
process fails as soon as an exception ends its script, though it may exit later. Ctrl-C and SIGTERM end all processes;
after Ctrl-C one line says where each of their scripts was.

Exit codes: 0 where all processes ended so, else that of the first to fail; 128 + n where signal n ended it, 130 for
Ctrl-C; 1 for a script that cannot be run; 2 for wrong options.

--hosts needs ssh without a password, this environment and the current folder at the same paths on all hosts, and a
first host whose name or address the others reach; JAX*, XLA* and NCCL* variables are handed on. When this launcher ends
in whatever way, so do all processes.

With --restart a process that fails is started again and the others go on, for scripts that call jaxring.rebuild() and
jaxring.shrink(); all but process 0, which holds the coordination service of jax.distributed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import socket
import sys

from jaxring.cli import arguments as types
from jaxring.errors import JaxringError
from jaxring.launcher import hosts as launch_hosts
from jaxring.launcher.command import Command, HostPart
from jaxring.launcher.hosts import REMOTE
from jaxring.launcher.job import Job
from jaxring.launcher.job_environment import environment
from jaxring.launcher.restart import Restart
from jaxring.launcher.script import check_script

HELP = "start a job of several processes, here or on several hosts"
MAX_PROCESSES = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring run`."""
    parser.add_argument("-n", "--processes", type=_count, required=True, metavar="N", help="processes (of each host)")
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
    parser.add_argument(
        "--env",
        type=types.variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of all processes, on all hosts (repeatable)",
    )
    parser.add_argument("--log-dir", default="", metavar="DIR", help="a file for each process's output, too, in DIR")
    parser.add_argument("--hosts", metavar="LIST", help="start it on these hosts by ssh: a,user@b")
    parser.add_argument(
        "--ssh", default="ssh -o BatchMode=yes", metavar="COMMAND", help="what reaches a host by its name"
    )
    parser.add_argument("--nnodes", type=_count, default=1, metavar="H", help="hosts of the job, of which this is one")
    parser.add_argument("--node-rank", type=int, default=0, metavar="K", help="which of them: from 0")
    help_ = "address of the first host and a free port of it, where JAX's coordination service listens"
    parser.add_argument("--coordinator", default="", metavar="HOST:PORT", help=help_)
    parser.add_argument(REMOTE, action="store_true", dest="remote", help=argparse.SUPPRESS)
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
    _check(arguments)
    if arguments.hosts:
        return _on_hosts(arguments)
    check_script(arguments.script, arguments.module)
    if arguments.nnodes > 1:
        return _here(arguments, arguments.coordinator)
    # The socket stays bound, not listening, so that no other program gets the port; the coordinator shares it, because
    # gRPC sets SO_REUSEPORT too.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        return _here(arguments, arguments.coordinator or f"127.0.0.1:{reserved.getsockname()[1]}")


def _check(arguments: argparse.Namespace) -> None:
    """JaxringError for options that do not go together."""
    if arguments.hosts and (arguments.nnodes > 1 or arguments.restart):
        raise JaxringError("--hosts starts all hosts by itself: leave out --nnodes, --node-rank and --restart.")
    if not 0 <= arguments.node_rank < arguments.nnodes:
        raise JaxringError(f"--node-rank {arguments.node_rank} is none of --nnodes {arguments.nnodes}: count from 0.")
    if arguments.nnodes > 1 and not arguments.coordinator:
        raise JaxringError("--nnodes needs --coordinator HOST:PORT, an address of host 0, the same on all hosts.")
    if arguments.nnodes > 1 and arguments.restart:
        raise JaxringError("--restart works on one host.")
    if arguments.coordinator and not re.fullmatch(r"\S+:[0-9]{1,5}", arguments.coordinator):
        raise JaxringError(f"--coordinator {arguments.coordinator} is not HOST:PORT.")


def _on_hosts(arguments: argparse.Namespace) -> int:
    hosts = launch_hosts.names(arguments.hosts)
    options = ["-n", str(arguments.processes), "--output", arguments.output]
    for name in ("devices_per_process", "log_dir", "install"):
        if getattr(arguments, name):
            options += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    options += [
        f"--{name.replace('_', '-')}" for name in ("no_prefix", "no_init", "module") if getattr(arguments, name)
    ]
    options += [f"--env={name}={value}" for name, value in arguments.env]
    options += [arguments.script, *arguments.arguments]
    commands = launch_hosts.commands(hosts, arguments.ssh, arguments.coordinator, options, os.environ)
    return Job(commands, "all", False, part=HostPart(hosts=hosts, listen=launch_hosts.Remote)).run()


def _here(arguments: argparse.Namespace, address: str) -> int:
    """This host's part of the job with the coordinator at ``address``."""
    options = [flag for flag, given in (("--no-init", arguments.no_init), ("--module", arguments.module)) if given]
    restart = Restart(arguments.restart, arguments.restart_delay) if arguments.restart else None
    # -P: the current folder may hold modules by the names of those that the worker needs, such as a checkout's.
    worker = [sys.executable, "-P", "-m", "jaxring.launcher.worker", *options]
    first, count = arguments.node_rank * arguments.processes, arguments.nnodes * arguments.processes
    commands = []
    for process in range(first, first + arguments.processes):
        env = environment(os.environ | dict(arguments.env), address, count, process, arguments.devices_per_process)
        if arguments.install:
            env["JAXRING_INSTALL"] = arguments.install
        last: list[str] = []
        if restart is not None:
            env["JAX_ENABLE_RECOVERABILITY"] = "1"
            last = ["--last", str(restart.read_end)] if process == 0 else []
        rest = [*last, str(os.getpid()), arguments.script, *arguments.arguments]
        commands.append(Command(functools.partial(_argv, worker, rest), env))
    tell = launch_hosts.tell if arguments.remote else None
    part = HostPart(first, tell=tell, until_input_ends=arguments.remote)
    return Job(commands, arguments.output, not arguments.no_prefix, restart, part, arguments.log_dir).run()


def _argv(worker: list[str], rest: list[str], report: int) -> list[str]:
    return [*worker, "--report", str(report), *rest]


def _count(text: str) -> int:
    if not (re.fullmatch("[0-9]{1,4}", text) and 1 <= int(text) <= MAX_PROCESSES):
        raise ValueError(text)
    return int(text)


_count.__name__ = f"number (1 to {MAX_PROCESSES})"  # argparse names the type in its message
