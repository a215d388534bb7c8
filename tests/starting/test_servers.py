"""Servers of forks: what they are asked for at once, whom they serve, when they end, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests import ROOT, starting
from tests.leftovers import lives
from tests.starting import popen

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def servers(monkeypatch):
    """Those of this process, of which there are none yet."""
    own = popen._Servers()
    monkeypatch.setattr(popen, "servers", own)
    yield own
    own.close()


def forked(text, **options):
    """What a fork prints."""
    with starting.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, **options) as process:
        out, _ = process.communicate(timeout=100)
    assert process.forked
    assert process.returncode == 0
    return out


def children(pid):
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return sorted(map(int, found.split()))


def files():
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_many_forks_leave_nothing():
    for _ in range(2):
        forked("pass")
    before = children(os.getpid()), files()
    for number in range(50):
        # At once: what the end of an interpreter costs is no part of this.
        assert forked(f"import os; os.write(1, b'{number}'); os._exit(0)") == str(number)
    assert (children(os.getpid()), files()) == before


@pytest.mark.slow
def test_many_at_once_are_who_they_are():
    text = "import os, sys, time; print(os.getpid(), os.getppid(), sys.argv[1]); sys.stdout.flush(); time.sleep(0.2)"
    found = {}

    def start(number):
        with starting.Popen([sys.executable, "-c", text, str(number)], stdout=subprocess.PIPE, text=True) as process:
            found[number] = (process.pid, process.communicate(timeout=100)[0], process.wait())

    threads = [threading.Thread(target=start, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: (pid, f"{pid} {os.getpid()} {n}\n", 0) for n, (pid, _, _) in found.items()}
    assert len({pid for pid, _, _ in found.values()}) == len(found) == 24


def test_the_kernel_says_how_it_ended():
    process = starting.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    assert process.forked
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL
    assert process.wait(60) == -signal.SIGKILL


def test_nobody_keeps_a_file_of_somebody_else():
    """A rank that has a socket of another keeps a connection up whose owner has ended."""
    forked("pass")
    ours, other = socket.socketpair()
    with ours, other, starting.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as process:
        other.set_inheritable(True)
        with starting.Popen([sys.executable, "-c", "import time; time.sleep(100)"], starts=True) as launcher:
            other.close()
            assert ours.recv(1) == b""
            launcher.kill()
        process.kill()
    # Nor does a server keep the end of a pipe whose other end a fork reads or writes.
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as end:
        with starting.Popen([sys.executable, "-c", "print(1)"], stdout=writes, starts=True) as process:
            os.close(writes)
            assert end.read() == b"1\n"
        assert process.returncode == 0


def test_what_a_launcher_starts_are_its_children_and_forks():
    text = """
import os, signal, subprocess, sys
inner = "import os, sys; print(os.getpid(), os.getppid(), os.getpgrp(), sys.argv, 'jax' in sys.modules); sys.exit(7)"
child = subprocess.Popen([sys.executable, "-c", inner, "x"], stdout=subprocess.PIPE, text=True, process_group=0)
out = child.communicate()[0]
said = [*map(str, (child.pid, os.getpid(), child.pid)), "['-c',", "'x']", "True"]
print(child.forked, child.returncode, out.split() == said)
print(subprocess.run([sys.executable, "-c", "import signal, os; os.kill(os.getpid(), signal.SIGTERM)"]).returncode)
print(subprocess.run(["sh", "-c", "exit 3"]).returncode)
"""
    assert forked(text, starts=True).splitlines() == ["True 7 True", "-15", "3"]
    assert forked("import subprocess; print(subprocess.Popen.__module__)") == "subprocess\n"


@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_launcher_s_server_ends_with_it(how, tmp_path):
    text = "import os, sys, time; print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)"
    text += "; sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with starting.Popen([sys.executable, "-c", text], starts=True, text=True, **pipes) as process:
        (server,) = map(int, process.stdout.readline().split())
        assert lives(server)
        if how == "kill":
            process.kill()
        process.stdin.close()
        process.wait(60)
        wait_until(lambda: not lives(server))


@pytest.mark.slow
def test_all_servers_end_with_a_process_that_is_killed(tmp_path):
    text = f"""
import json, os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests import starting
ranks = [starting.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], starts=True) for _ in range(3)]
assert all(rank.forked for rank in ranks)
print(json.dumps([rank.pid for rank in ranks]), flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as parent:
        ranks = json.loads(parent.stdout.readline())
        servers = set(children(parent.pid)) - set(ranks)
        assert len(servers) == 2
        parent.kill()
    wait_until(lambda: not any(map(lives, servers)))
    for rank in ranks:  # as those that subprocess starts
        assert lives(rank)
        os.kill(rank, signal.SIGKILL)


@pytest.mark.slow
def test_a_server_that_was_killed_is_replaced(servers):
    forked("pass")
    forked("pass")
    for server in list(servers.all()):
        os.kill(server, signal.SIGKILL)
        wait_until(lambda pid=server: not lives(pid))
    for _ in range(2):  # nothing of these is lost
        done = starting.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stdout) == (0, "1\n")
    assert forked("print(2)") == "2\n"


def test_processes_that_follow_each_other_hash_strings_differently():
    assert len({forked("print(hash('a'))") for _ in range(4)}) == popen._SERVERS


def test_memory_lies_elsewhere():
    text = "import ctypes, mmap; print(ctypes.addressof(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 20))))"
    assert len({forked(text) for _ in range(6)}) == 6


@pytest.mark.parametrize(
    "env",
    [
        ("JAX_ENABLE_X64", "1"),
        ("TZ", "UTC"),
        ("LD_LIBRARY_PATH", "/"),
        ("PYTHONHASHSEED", "1"),
        ("MALLOC_ARENA_MAX", "1"),
    ],
    ids=lambda env: env[0],
)
def test_what_is_read_at_a_start_starts_python(env):
    name, value = env
    text = "import os, sys; print(os.environ[sys.argv[1]])"
    if name.startswith("JAX_"):
        text += "; import jax; assert jax.config.jax_enable_x64"
    command = [sys.executable, "-c", text, name]
    with starting.Popen(command, env=os.environ | {name: value}, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=100)
    assert not process.forked
    assert (process.returncode, out.split()) == (0, [value])


@pytest.mark.parametrize("options", [["-I"], ["-W", "error"], ["-S"], ["-X", "dev"], ["-u"], ["-O"]], ids=" ".join)
def test_options_of_the_interpreter_start_it(options):
    with starting.Popen([sys.executable, *options, "-c", "pass"]) as process:
        assert process.wait(100) == 0
    assert not process.forked


@pytest.mark.slow
def test_other_commands_are_started(servers):
    with starting.Popen(["true"]) as process:
        assert not process.forked
    done = starting.run(["sh", "-c", "echo 1; exit 4"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "1\n")
    with pytest.raises(subprocess.CalledProcessError):
        starting.run([sys.executable, "-c", "import sys; sys.exit(1)"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        starting.run([sys.executable, "-c", "import time; time.sleep(100)"], timeout=0.2)
    assert not servers.all() or all(map(lives, servers.all()))


def test_lines_that_a_fork_executes_are_counted(tmp_path):
    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text("def f():\n    return 1\nprint(f())\n")
    (tmp_path / "rc").write_text(f"[run]\ndata_file = {data}\nparallel = true\n")
    env = os.environ | {"COVERAGE_PROCESS_START": str(tmp_path / "rc")}
    env.pop("COVERAGE_PROCESS_CONFIG", None)
    with starting.Popen([sys.executable, str(program)], env=env, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        assert process.wait(100) == 0
    assert process.forked
    coverage = pytest.importorskip("coverage")
    (found,) = tmp_path.glob("data.*")
    counted = coverage.CoverageData(str(found))
    counted.read()
    assert sorted(counted.lines(str(program))) == [1, 2, 3]


def test_standard_input_and_signals_reach_it():
    text = """
import sys, time
try:
    print("there", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", sys.stdin.read())
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with starting.Popen([sys.executable, "-c", text], text=True, process_group=0, **pipes) as process:
        assert process.stdout.readline() == "there\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate("input", timeout=60)[0] == "interrupted input\n"
    assert process.returncode == 0
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 0)
        raise AssertionError("the group is left")
