"""A fork of a server becomes the process that was asked for: as a new interpreter would, but for imports."""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import importlib.machinery
import json
import linecache
import mmap
import os
import pathlib
import random
import resource
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from typing import Any

from tests.starting import request

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MNT_DETACH = 0x1000, 0x4000, 0x80000, 2
# sys.path of a Python without PYTHONPATH, but for its first entry. Set by the server.
PATH: list[str] = []
# Where `begin` replies; the space between this process's memory and that of others like it.
_kept: dict[str, Any] = {}


def import_libraries() -> None:
    """What programs of tests import, and takes most of their start. It starts no threads, and nothing of it is ours."""
    import jax
    import jax.extend.source_info_util
    import jax.numpy

    # Under a program's frames are those of the server, which are not the program's.
    jax.extend.source_info_util.register_exclusion(str(pathlib.Path(__file__).parent))


def become(asked: dict[str, Any], descriptors: list[int], between: int, hello: dict[str, Any]) -> None:
    """Takes on everything that was asked but the program. `between`: the parent at first, which is about to end."""
    while os.getppid() == between:
        time.sleep(0.0002)
    asked["pid"] = os.getpid()
    if os.getppid() != asked["parent"]:
        os._exit(1)  # it has ended
    targets, reply = asked["targets"], descriptors[0]
    try:
        if asked["session"]:
            os.setsid()
        if asked["group"] is not None:
            os.setpgid(0, asked["group"])
        reply = _take_descriptors(descriptors, targets)
        _kept["reply"] = reply
        if asked["host"] is not None:
            _enter(request.Host(*asked["host"]))
        os.chdir(asked["cwd"])
        _take_limits(asked)
        _take_signals(asked)
        _take_environment(asked, hello["set"])
        _forget()
        _take_streams()
        _configure(asked["env"])
        _take_program(request.Program(*asked["program"]), asked["argv"], asked["env"])
    except OSError as error:
        _reply(reply, {"errno": error.errno, "file": error.filename})
        os._exit(127)
    except BaseException:
        _reply(reply, {"failed": traceback.format_exc()})
        os._exit(127)


def serve_parent(connection: int, parent: int) -> None:
    """This fork is the server of its parent, with which it ends: it has no files but the connection."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    with open(os.devnull, "r+b", buffering=0) as null:  # noqa: PTH123
        for descriptor in range(3):
            os.dup2(null.fileno(), descriptor)
    _close_but({connection})
    os.setpgid(0, 0)  # what is for the parent's group is not for this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def begin(asked: dict[str, Any]) -> None:
    """Tells the process that asked that this process is there, which begins now."""
    program = request.Program(*asked["program"])
    if program.stacks:
        import faulthandler

        faulthandler.enable()
        sys._xoptions["faulthandler"] = True
    if any(name in asked["env"] for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")):
        import coverage

        coverage.process_startup()
    _reply(_kept.pop("reply"), {})


def run(program: request.Program) -> bool:
    """Runs it as Python's own main function does; whether an exception that is shown has ended it.

    After Ctrl-C the interpreter has noted that it ends by SIGINT, and this is False.
    """
    python = ctypes.pythonapi
    if program.kind == "m":
        try:
            runpy._run_module_as_main(program.what)
        except SystemExit:
            raise
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            if sys.version_info >= (3, 12):
                sys.last_exc = error
            sys.excepthook(type(error), error, error.__traceback__)
            if not isinstance(error, KeyboardInterrupt):
                return True
            sys.excepthook = lambda *_: None
            program = request.Program("c", "raise KeyboardInterrupt", [])
        else:
            return False
    if program.kind == "c":
        if sys.version_info >= (3, 13):  # tracebacks have lines of such a text, too
            linecache.cache["<string>"] = (len(program.what), None, program.what.splitlines(True), "<string>")
        failed = python.PyRun_SimpleStringFlags(ctypes.c_char_p(os.fsencode(program.what) + b"\n"), None)
    else:
        libc, name = ctypes.CDLL(None), os.fsencode(os.path.join(os.getcwd(), program.what))  # noqa: PTH109, PTH118
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(ctypes.c_char_p(name), b"rb"))
        failed = python.PyRun_SimpleFileExFlags(file, ctypes.c_char_p(name), 1, None)
    return bool(failed) and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)


def _reply(descriptor: int, what: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps({"pid": os.getpid()} | what).encode())
    os.close(descriptor)


def _take_descriptors(descriptors: list[int], targets: list[int]) -> int:
    """Has those at their places, and no others but that for the reply, which is returned."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1) for each in descriptors]
    for source, target in zip(moved[1:], targets, strict=True):
        os.dup2(source, target)
    _close_but({moved[0], *targets})
    return moved[0]


def _close_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # that of the listing
                continue


def _enter(host: request.Host) -> None:
    """As `ip netns exec` does and what follows it in the host's command (`jaxring.bench.hosts`)."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}", host.namespace)

    with pathlib.Path("/var/run/netns", host.namespace).open() as namespace:
        call("setns", namespace.fileno(), _CLONE_NEWNET)
    call("unshare", _CLONE_NEWNS | _CLONE_NEWUTS)
    call("mount", b"", b"/", b"none", ctypes.c_ulong(_MS_SLAVE | _MS_REC), None)
    call("umount2", b"/sys", _MNT_DETACH)
    call("mount", os.fsencode(host.namespace), b"/sys", b"sysfs", ctypes.c_ulong(0), None)
    call("mount", os.fsencode(host.names), b"/etc/hosts", None, ctypes.c_ulong(_MS_BIND), None)
    socket.sethostname(host.name)


def _take_limits(asked: dict[str, Any]) -> None:
    os.umask(asked["umask"])
    for number, *limits in asked["limits"]:
        if resource.getrlimit(number) != tuple(limits):
            resource.setrlimit(number, tuple(limits))
    if os.sched_getaffinity(0) != set(asked["cpus"]):
        os.sched_setaffinity(0, asked["cpus"])
    if os.getpriority(os.PRIO_PROCESS, 0) != asked["niceness"]:
        os.setpriority(os.PRIO_PROCESS, 0, asked["niceness"])


def _take_signals(asked: dict[str, Any]) -> None:
    """As a new interpreter has them: ignored ones stay so, and Python ignores two and handles one."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignored = asked["ignored"] >> (number - 1) & 1 or number in (signal.SIGPIPE, signal.SIGXFSZ)
        handled = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if ignored else handled)
    signal.pthread_sigmask(signal.SIG_SETMASK, {n for n in signal.valid_signals() if asked["blocked"] >> (n - 1) & 1})


def _take_environment(asked: dict[str, Any], made: dict[str, str]) -> None:
    """The C library's, Python's, and what the kernel shows of arguments and environment to others.

    `made`: variables that the import has set, which it does where there are none.
    """
    os.environ.clear()
    ctypes.CDLL(None).clearenv()
    os.environ.update(made | asked["env"])
    # The first environment and the arguments lie on the stack, with room, and nobody needs them any more.
    places = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]
    shown = [asked["argv"], [f"{name}={value}" for name, value in asked["env"].items()]]
    for begin, end, texts in zip(map(int, places[::2]), map(int, places[1::2]), shown, strict=True):
        data = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - begin - 1]
        ctypes.memmove(begin, data.ljust(end - begin, b"\0"), end - begin)


def _forget() -> None:
    """What differs between two new processes, and what was read from the environment of the server."""
    tempfile.tempdir = None
    linecache.clearcache()
    sys.path_importer_cache.clear()
    numbers = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed()
    # Up to 4 GiB of addresses, so that two processes with as many are rare; without access they are no memory.
    pages, flags = random.randrange(1, 1 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    _kept["space"] = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=flags, prot=0)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def _take_streams() -> None:
    """As Python makes them for the files that they are now. The objects stay, since loggers have them."""
    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        through = bool(os.environ.get("PYTHONUNBUFFERED"))
        size = 0 if descriptor and through else -1
        buffer = open(descriptor, "wb" if descriptor else "rb", size, closefd=False)  # noqa: SIM115
        getattr(buffer, "raw", buffer).name = stream.name
        by_line = not through and (descriptor == 2 or os.isatty(descriptor))
        stream.__init__(buffer, stream.encoding, stream.errors, "\n", by_line, through)


def _configure(env: dict[str, str]) -> None:
    import jax

    if "JAX_PLATFORMS" in env:
        jax.config.update("jax_platforms", env["JAX_PLATFORMS"])
    if "JAX_NUM_CPU_DEVICES" in env:
        jax.config.update("jax_num_cpu_devices", int(env["JAX_NUM_CPU_DEVICES"]))
    if "JAX_ENABLE_RECOVERABILITY" in env:
        jax.config.update("jax_enable_recoverability", env["JAX_ENABLE_RECOVERABILITY"] == "1")


def _take_program(program: request.Program, argv: list[str], env: dict[str, str]) -> None:
    """sys's names of the program, and a module for it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __loader__=importlib.machinery.BuiltinImporter, __annotations__={})
    sys.modules["__main__"] = main
    sys.orig_argv[:] = argv
    sys.argv[:] = [program.what if program.kind == "f" else f"-{program.kind}", *program.arguments]
    first = {"c": "", "m": os.getcwd(), "f": os.path.dirname(os.path.realpath(program.what))}  # noqa: PTH109, PTH120
    given = env.get("PYTHONPATH", "")
    paths = [os.path.abspath(path) for path in given.split(os.pathsep)] if given else []  # noqa: PTH100
    sys.path[:] = [*([] if program.safe else [first[program.kind]]), *dict.fromkeys([*paths, *PATH])]
