"""A job on several hosts: on each, `jaxring run` starts that host's processes, here by ssh.

Each host's launcher has a pipe of ours as its standard input, through ssh, and ends its processes when that ends:
Ctrl-C here, kill -9 of this launcher, or a lost connection leaves nothing behind. It writes what its processes report
to its standard error, in lines of their own, so that the first failure of all hosts is known here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError
from jaxring.launcher import failure_report
from jaxring.launcher.command import Command
from jaxring.launcher.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO

# The option of a launcher that another one has started.
REMOTE = "--started-by-ssh"
_MARK = b"\x1ejaxring-report "
# Variables that a host's processes have from here.
_HANDED_ON = re.compile(r"(JAX|JAXRING|NCCL|PJRT|XLA|TF)_\w+|PYTHONPATH")
# Below the ephemeral ports of Linux, so that no connection has taken it.
_PORTS = range(20000, 30000)
_HOST = re.compile(r"(?:[\w.-]+@)?([\w.:-]+)")


def names(text: str) -> list[str]:
    """The hosts of a list such as "a,user@b". Raises JaxringError for what is no name."""
    found = text.split(",")
    wrong = [name for name in found if not _HOST.fullmatch(name) or name.startswith("-")]
    if wrong or len(set(found)) < len(found):
        raise JaxringError(f"--hosts {text}: give names such as a,user@b, each once.")
    return found


def commands(
    hosts: Sequence[str], ssh: str, coordinator: str, options: Sequence[str], environ: Mapping[str, str]
) -> list[Command]:
    """What starts a launcher on each host, in the current folder, with these options and arguments of `jaxring run`.

    ``coordinator`` is HOST:PORT; "" for a port of the first host's.
    """
    if not coordinator:
        match = _HOST.fullmatch(hosts[0])
        assert match is not None
        host = f"[{match[1]}]" if ":" in match[1] else match[1]
        coordinator = f"{host}:{random.SystemRandom().choice(_PORTS)}"
    variables = [f"{name}={value}" for name, value in environ.items() if _HANDED_ON.fullmatch(name)]
    made = []
    for number, host in enumerate(hosts):
        where = ["--nnodes", str(len(hosts)), "--node-rank", str(number), "--coordinator", coordinator, REMOTE]
        launcher = [sys.executable, "-P", "-m", "jaxring.cli", "run", *where, *options]
        line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *variables, *launcher])}"  # noqa: PTH109
        made.append(Command(_argv([*shlex.split(ssh), host, line]), dict(environ), lifeline=True))
    return made


def _argv(argv: list[str]) -> Callable[[int], Sequence[str]]:
    return lambda _report: argv


def tell(rank: int, found: failure_report.Report) -> None:
    """Write a process's report for the launcher that has started this one."""
    line = _MARK + str(rank).encode() + b" " + failure_report.encode(found)
    with contextlib.suppress(OSError):  # ssh is gone, and the processes still have their time to end
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


class Remote(Stream):
    """The standard error of a host's launcher: what its processes report goes to ``then``, the rest on."""

    def __init__(self, sink: BinaryIO, then: Callable[[failure_report.Report], None]) -> None:
        super().__init__(b"", sink)
        self._then = then

    def _write(self, lines: Sequence[bytes]) -> None:
        rest = []
        for line in lines:
            # What writes straight to that error output, as a progress bar does, may have left a line unfinished.
            before, mark, after = line.rpartition(_MARK)
            found = _read(after) if mark else None
            if found is None:
                rest.append(line)
                continue
            self._then(found)
            if before:
                rest.append(before + b"\n")
        super()._write(rest)


def _read(told: bytes) -> failure_report.Report | None:
    rank, _, encoded = told.partition(b" ")
    found = failure_report.decode(encoded)
    if found is None or not rank.isdigit():
        return None
    # Clocks of hosts differ: what counts is when it came.
    what = f"process {int(rank)}" + (f": {found.kind}" if found.kind else f" ended with exit code {found.code}")
    return dataclasses.replace(found, when=time.monotonic(), kind=what)
