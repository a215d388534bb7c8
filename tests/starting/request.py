"""What a process shall be, as its server is told, and whether a fork of the server can be that."""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Read by the interpreter and by libraries when they start, C's and C++'s among them: a fork has the server's. Names
# that Python code reads while JAX is imported are found out by the server (`server.imported`).
_READ_AT_START = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "LANG",
    "LC_",
    "TZ",
    "OPENBLAS_",
    "OMP_",
    "GOTO_",
    "MKL_",
    "OPENSSL_",
    "GFORTRAN_",
    "GCS_",
    "LLVM_",
    "MPITRAMPOLINE_",
    "NPY_",
    "NUMPY_",
    "TF_CPP_",
    "TF_USE_",
)
# These a child sets itself: sys.path, and what is in jax.config.
SETTABLE = {"PYTHONPATH", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "JAX_ENABLE_RECOVERABILITY"}
# A variable of our Makefile, which make exports where it is given on the command line; Python does not read it.
_UNREAD = {"PYTHON"}
# NumPy's matrix products in a fork have one thread, as in the server, which must have no other.
_FIXED = {"OPENBLAS_NUM_THREADS"}
# More than this is not written where the kernel shows a process's environment and arguments.
ROOM = 60_000
_NAMESPACES = ("net", "mnt", "uts", "ipc", "user", "pid_for_children")
_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))
# Of our command line.
_STARTS = {"run", "bench"}


class Host(NamedTuple):
    """Of a command that runs `argv` on a host that `jaxring.bench.hosts` has made: what it does before.

    `names`: the file that is /etc/hosts there.
    """

    namespace: str
    name: str
    names: str
    argv: Sequence[str]


class Program(NamedTuple):
    """What Python is to run: `kind` is c for a text, m for a module, f for a file.

    `safe`: with -P. `stacks`: with -X faulthandler.
    """

    kind: str
    what: str
    arguments: list[str]
    safe: bool = False
    stacks: bool = False


def program(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Program | None:
    """What a command has Python run; None for other commands, and for options that the start of Python looks at."""
    if argv[0] != sys.executable:
        return _script(argv, env)
    rest, safe, stacks = list(argv[1:]), False, False
    while rest[:1] == ["-P"] or rest[:2] == ["-X", "faulthandler"]:
        if rest.pop(0) == "-P":
            safe = True
        else:
            rest.pop(0)
            stacks = True
    if not rest:
        return None
    if rest[0] in ("-c", "-m"):
        return Program(rest[0][1], rest[1], rest[2:], safe, stacks) if len(rest) > 1 else None
    if rest[0].startswith("-") or not (pathlib.Path(cwd) / rest[0]).is_file() or not rest[0].endswith(".py"):
        return None
    return Program("f", rest[0], rest[1:], safe, stacks)


def _script(argv: Sequence[str], env: Mapping[str, str]) -> Program | None:
    """A command that the environment of this Python has installed, such as `jaxring`."""
    found = shutil.which(argv[0], path=env.get("PATH"))
    if found is None or pathlib.Path(found).parent != pathlib.Path(sys.executable).parent:
        return None
    with pathlib.Path(found).open("rb") as file:
        if file.readline().rstrip() != b"#!" + os.fsencode(sys.executable):
            return None
    return Program("f", found, list(argv[1:]))


def customized(env: Mapping[str, str]) -> bool:
    """Whether a module of the path is imported at the start of Python."""
    folders = [pathlib.Path(folder) for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return any((folder / f"{name}customize.py").exists() for folder in folders for name in ("site", "user"))


def starts_others(argv: Sequence[str]) -> bool:
    """Whether a process that runs this may start processes that import JAX."""
    return any(word in _STARTS for word in argv[1:6])


def same_start(env: Mapping[str, str], server: Mapping[str, str], read: Iterable[str]) -> bool:
    """Whether what is read at the start says the same in both environments. `read`: further names of such variables."""
    names = {name for name in {*env, *server} if name.startswith(_READ_AT_START)} | set(read)
    return all(env.get(name) == server.get(name) for name in names - SETTABLE - _FIXED - _UNREAD)


def inherited() -> dict[str, Any]:
    """What a child inherits from the thread that starts it, and a fork of another process does not."""
    status = dict(
        line.split(":", 1) for line in pathlib.Path("/proc/thread-self/status").read_text().splitlines() if ":" in line
    )
    return {
        "parent": os.getpid(),
        "umask": int(status["Umask"], 8),
        "ignored": int(status["SigIgn"], 16),
        "blocked": int(status["SigBlk"], 16),
        "limits": [(number, *resource.getrlimit(number)) for number in _LIMITS],
        "cpus": sorted(os.sched_getaffinity(0)),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }


def namespaces() -> list[int]:
    """What has to be the same for a fork of another process to be in the same place; its session, too."""
    return [os.getsid(0), *(os.stat(f"/proc/thread-self/ns/{name}").st_ino for name in _NAMESPACES)]  # noqa: PTH116
