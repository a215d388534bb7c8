"""A process that a server has forked finds and leaves everything as one that the same call of subprocess starts."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys

import pytest

from tests import starting

# What a process may see of how it was started, as lines that differ between two starts in nothing.
START = """
import ctypes, faulthandler, json, os, pathlib, resource, signal, stat, sys, threading
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
main = sys.modules["__main__"]
FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}  # faulthandler's
import jax
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
for name, value in {
    "argv": [sys.argv, sys.orig_argv, sys.path, sys.executable, sys.warnoptions, sys._xoptions],
    "flags": str(sys.flags).partition("safe_path")[0],
    "environment": sorted(os.environ.items()),
    "in C": [libc.getenv(name) for name in (b"PATH", b"OF_THE_TEST", b"OPENBLAS_NUM_THREADS", b"TEST_SERVER_ROOM")],
    "shown": sorted(filter(None, pathlib.Path("/proc/self/environ").read_bytes().split(b"\\0"))),
    "command": pathlib.Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0"),
    "main": sorted((name, str(value)) for name, value in vars(main).items() if name.startswith("__")),
    "is main": (main.__dict__ is globals(), __name__),
    "streams": [
        [s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through, s.name, s.mode, s.closed, s.isatty(),
         type(s.buffer).__name__, s.buffer.name, s.buffer.mode, s.fileno(),
         getattr(s.buffer, "raw", s.buffer).closefd]
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "their own": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "files": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
    "inherited": [os.get_inheritable(n) for n in range(3)],
    "signals": [(int(n), str(signal.getsignal(n))) for n in sorted(signal.valid_signals() - FATAL)],
    "in the kernel": [status[name] for name in ("SigBlk", "SigCgt", "Umask", "Threads", "Cpus_allowed")],
    "ignored": int(status["SigIgn"], 16) & ~(3 << 31),  # two are the C library's, whose posix_spawn ignores them
    "limits": [resource.getrlimit(n) for n in range(16)],
    "place": [os.getcwd(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getppid()],
    "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "thread": [threading.current_thread() is threading.main_thread(), threading.active_count()],
    "handler": faulthandler.is_enabled(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
    "name": pathlib.Path("/proc/self/comm").read_text(),
    "of tests": [name for name in sys.modules if name.partition(".")[0] in ("tests", "jaxring")],
    "input": sys.stdin.read(),
    "config": sorted((n, str(v)) for n, v in jax.config.values.items()),
}.items():
    print(name, value)
"""
OPTIONS = {
    "by default": {},
    "folder": {"cwd": "/"},
    "session": {"start_new_session": True},
    "group": {"process_group": 0},
    "input": {"input": "some lines\nof text\n"},
    "no input": {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT},
    "environment": {"env": {"PATH": "/bin", "OF_THE_TEST": "ä and more"}},
    "path": {"env": {"PYTHONPATH": "/tmp:relative::/tmp", "PATH": "/bin"}},
    "a variable of make": {"env": {"PYTHON": "python3.99", "PATH": "/bin"}},
    "devices": {"env": {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3", "JAX_ENABLE_RECOVERABILITY": "1"}},
}


def both(command, **options):
    """How the command ends, (exit status, standard output, standard error), started by each, the fork first."""
    # What the server was started with, else there is no fork. Another start has threads of OpenBLAS's, too.
    kept = ("HOME", "LANG", "LC_", "TF_CPP", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    env |= {**options.pop("env", os.environ), "OPENBLAS_NUM_THREADS": "1"}
    options = {"stdin": subprocess.DEVNULL, "env": env} | options
    ends = []
    for popen in (starting.Popen, subprocess.Popen):
        text = options.get("input")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | ({"stdin": subprocess.PIPE} if text else {})
        others = {name: value for name, value in options.items() if name != "input"}
        with popen(command, text=True, encoding="utf-8", **pipes | others) as process:
            out, err = process.communicate(text, timeout=100)
        assert getattr(process, "forked", False) == (popen is starting.Popen)
        ends.append((process.returncode, re.sub(r" at 0x\w+", "", out), err))
    return ends


def differences(forked, started):
    """Lines of what they have printed."""
    return [
        line
        for one, other in zip(forked[1:], started[1:], strict=True)
        for line in difflib.unified_diff((one or "").splitlines(), (other or "").splitlines(), lineterm="", n=0)
    ]


def commands(folder, text):
    """Python with a program's text, as a module and as a file."""
    folder.joinpath("its_module.py").write_text(text, encoding="utf-8")
    folder.joinpath("file.py").write_text(text, encoding="utf-8")
    folder.joinpath("link.py").symlink_to("file.py")
    return {
        "text": [sys.executable, "-c", text, "an", "argument"],
        "module": [sys.executable, "-m", "its_module", "-x"],
        "safe": [sys.executable, "-P", "-X", "faulthandler", "-m", "its_module"],
        "file": [sys.executable, str(folder / "file.py"), "--option"],
        "link": [sys.executable, "link.py"],
        "safe file": [sys.executable, "-P", "file.py"],
    }


@pytest.mark.parametrize("kind", ["text", "module", "safe", "file", "link", "safe file"])
@pytest.mark.sampled(3)
def test_it_has_the_same_start(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forked, started = both(commands(tmp_path, START)[kind])
    assert not differences(forked, started)
    assert forked[0] == started[0] == 0
    assert len(forked[1].splitlines()) > 20


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.sampled(3)
def test_options_of_a_call_do_the_same(options):
    forked, started = both([sys.executable, "-c", START], **options)
    assert not differences(forked, started)
    assert forked[0] == started[0] == 0, forked[2]


ENDS = {
    "nothing": "pass",
    "an exception": "def f():\n    raise ValueError('ä')\nf()",
    "a chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(3) from e",
    "no syntax": "x = = 3",
    "a code": "import sys; print('before'); sys.exit(3)",
    "a text": "import sys; sys.exit('a text')",
    "no code": "import sys; sys.exit()",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "its exception": "raise KeyboardInterrupt",
    "at once": "import os; os._exit(4)",
    "a signal": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(100)",
    "SIGKILL": "import os, signal, time; os.kill(os.getpid(), signal.SIGKILL); time.sleep(100)",
    "an abort": "import os; os.abort()",
    "at exit": "import atexit; atexit.register(print, 'the end'); print('no end', end='')",
    "an exception at exit": "import atexit; atexit.register(int, 'x'); print('no end', end='')",
    "the last exception": (
        "import atexit, sys\nnames = ('last_type', 'last_value', 'last_exc', 'last_traceback')\n"
        "atexit.register(lambda: print([repr(getattr(sys, name, 0)) for name in names]))\nraise ValueError('x')"
    ),
    "a hook": "import sys; sys.excepthook = lambda *a: print('hook', a[1]); raise ValueError('x')",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "a warning": "import warnings; warnings.warn('careful')",
    "a closed pipe": "import os, sys; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "a frame": "import sys\nprint(sys._getframe().f_code.co_name)\nimport traceback; traceback.print_stack(limit=1)",
}


@pytest.mark.parametrize("kind", ["text", "module", "file"])
@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
@pytest.mark.sampled(4)
def test_it_ends_in_the_same_way(kind, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forked, started = both(commands(tmp_path, text)[kind])
    assert forked == started


@pytest.mark.parametrize("flags", ["--xla_dump_hlo_as_text", "--xla_of_no_such_name"])
def test_xla_reads_its_flags_in_the_fork(flags):
    text = "import jax; print(jax.jit(lambda x: x + 1)(2), jax.devices())"
    forked, started = both([sys.executable, "-c", text], env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
    assert forked[:2] == started[:2]
    assert (forked[0] == 0) == ("no_such" not in flags)


def test_descriptors_keep_their_numbers(tmp_path):
    text = "import os, sys; [print(os.read(int(n), 9), os.get_inheritable(int(n))) for n in sys.argv[1:]]"
    with (
        (tmp_path / "file").open("w+b") as one,
        (tmp_path / "file").open("rb") as other,
        starting.Popen([sys.executable, "-c", "pass"]),
    ):
        numbers = [os.dup2(other.fileno(), 57), one.fileno()]
        one.write(b"abc")
        one.seek(0)
        try:
            forked, started = both([sys.executable, "-c", text, *map(str, numbers)], pass_fds=numbers)
        finally:
            os.close(57)
    assert forked[0] == started[0] == 0, forked[2]


def test_a_missing_folder_is_the_same_error():
    errors = []
    for popen in (starting.Popen, subprocess.Popen):
        with pytest.raises(FileNotFoundError) as raised:
            popen([sys.executable, "-c", "pass"], cwd="/no/such/folder")
        errors.append((raised.value.errno, raised.value.filename))
    assert errors[0] == errors[1]
