"""`jaxring run` with real processes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxring.cli import main
from jaxring.cli.run import environment
from jaxring.launcher.command import Command
from jaxring.launcher.hosts import REMOTE
from jaxring.launcher.job import Job
from jaxring.launcher.streams import Log, Stream, label
from tests.leftovers import lives

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

PSUM = """
import sys
import jax
import numpy as np
from jax.sharding import PartitionSpec as P
if "init" in sys.argv:
    jax.distributed.initialize()
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(float(n))[i])
y = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
text = f"{jax.process_index()} of {jax.process_count()}: {jax.local_device_count()} {y.addressable_data(0)}"
with open(f"{__import__('os').environ['SCRATCH']}/{jax.process_index()}", "w") as file:
    file.write(text)
"""

# These need no JAX: what is tested is the launcher.
SAY_ALL = "import os, sys; print('out', os.environ['JAX_PROCESS_ID'], *sys.argv[1:]); print('err', file=sys.stderr)"


@pytest.mark.parametrize(
    ("options", "arguments"),
    [((), ()), ((), ("init",)), (("--no-init",), ("init",))],
    ids=["plain", "initialises itself", "must initialise itself"],
)
def test_psum_over_two_processes_of_two_devices(run, tmp_path, options, arguments):
    code, _, err = run(PSUM, "-n", "2", "--devices-per-process", "2", *options, arguments=arguments)
    assert code == 0, err
    assert [(tmp_path / str(p)).read_text() for p in range(2)] == ["0 of 2: 2 [6.]", "1 of 2: 2 [6.]"]


def test_a_script_that_disagrees_about_the_job_is_told(run):
    code, _, err = run("import jax; jax.distributed.initialize(num_processes=3)", "-n", "1")
    assert code == 1
    assert "num_processes=3" in err
    assert "--no-init" in err


def test_without_initialisation_what_the_script_says_of_the_job_counts(run):
    # The script's own count and index come before those of the environment.
    # A way of detection that the script names is left to JAX.
    text = """
import os, jax
if os.environ["JAX_PROCESS_ID"] == "1":
    jax.distributed.initialize(None, 1, process_id=0)
    print(jax.process_count())
else:
    jax.distributed.initialize(cluster_detection_method="no such one")
"""
    code, out, err = run(text, "-n", "2", "--no-init")
    assert (code, out) == (1, ["[1] 1"]), err
    assert "Number of processes must be defined" in err


def test_lines_have_the_rank_before_them_and_arguments_arrive(run):
    code, out, err = run(SAY_ALL, "-n", "3", "--no-init", arguments=("--flag", "-n", "9"))
    assert code == 0
    assert sorted(out) == [f"[{p}] out {p} --flag -n 9" for p in range(3)]
    assert sorted(err.splitlines()) == [f"[{p}] err" for p in range(3)]


def test_a_variable_of_all_processes(run):
    # It needs no JAX either.
    code, out, err = run("import os; print(os.environ['MINE'])", "-n", "2", "--no-init", "--env", "MINE=a=b")
    assert (code, sorted(out)) == (0, ["[0] a=b", "[1] a=b"]), err


def test_no_prefix(run):
    _, out, _ = run(SAY_ALL, "-n", "2", "--no-init", "--no-prefix")
    assert sorted(out) == ["out 0", "out 1"]


def test_output_of_rank_0_only(run):
    code, out, err = run(SAY_ALL, "-n", "2", "--no-init", "--output", "rank0")
    assert (code, out, err.splitlines()) == (0, ["out 0"], ["err"])


def test_a_silent_process_that_fails_is_named(run):
    text = "import os; assert os.environ['JAX_PROCESS_ID'] != '1', 'the reason'"
    code, _, err = run(text, "-n", "2", "--no-init", "--output", "rank0")
    assert code == 1
    assert "[1] AssertionError: the reason" in err
    assert "process 1 failed: AssertionError: the reason (script.py:1)" in err


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Each process and one that it starts say their pids and then stay, deaf to gentle signals.
STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
rank = os.environ["JAX_PROCESS_ID"]
here = pathlib.Path(os.environ["SCRATCH"])
(here / f"part{rank}").write_text(f"{os.getpid()} {other.pid} ")
(here / f"part{rank}").rename(here / f"pids{rank}")
while not all((here / f"pids{r}").exists() for r in range(int(os.environ["JAX_NUM_PROCESSES"]))):
    time.sleep(0.01)
if rank in sys.argv[1:]:
    os._exit(7)
time.sleep(600)
"""


def pids(tmp_path, count):
    files = [tmp_path / f"pids{rank}" for rank in range(count)]
    wait_until(lambda: all(file.exists() for file in files))
    return [int(pid) for file in files for pid in file.read_text().split()]


def test_one_failure_ends_all_with_its_exit_code(start, tmp_path):
    child = start(STUBBORN, "-n", "3", "--no-init", arguments=("1",))
    found = pids(tmp_path, 3)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 7
    assert "process 1 failed with exit code 7" in err
    wait_until(lambda: not any(map(lives, found)))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_all(start, tmp_path, number):
    child = start(STUBBORN, "-n", "2", "--no-init")
    found = pids(tmp_path, 2)
    child.send_signal(number)
    child.communicate(timeout=120)
    assert child.returncode == 128 + number
    wait_until(lambda: not any(map(lives, found)))


class Interrupted(Job):
    """Its signal comes before its first process is started, or when its last one has ended."""

    def __init__(self, late):
        super().__init__([Command(lambda _: ["true"], dict(os.environ))], "all", True)
        self._late = late
        if not late:
            self._signals.append(signal.SIGINT)

    def _drain(self):
        super()._drain()
        if self._late:
            self._signals.append(signal.SIGINT)


@pytest.mark.parametrize(("late", "code", "said"), [(False, 130, "jaxring run: interrupted\n"), (True, 0, "")])
def test_a_signal_before_the_first_process_counts_and_one_after_the_last_does_not(late, code, said, capfd):
    assert Interrupted(late).run() == code
    assert capfd.readouterr().err == said


def test_a_killed_launcher_leaves_no_process_of_the_job(start, tmp_path):
    child = start(STUBBORN, "-n", "2", "--no-init")
    found = pids(tmp_path, 2)
    try:
        child.kill()
        wait_until(lambda: not any(map(lives, found[::2])))
    finally:
        for pid in found[1::2]:  # what the script started is beyond the kernel's promise
            os.kill(pid, signal.SIGKILL)


def test_a_process_ended_by_a_signal_gives_128_plus_its_number(run):
    code, _, err = run("import os; os.kill(os.getpid(), 9)", "-n", "1", "--no-init")
    assert code == 137
    assert "process 0 was ended by SIGKILL" in err


def test_a_module_runs_with_its_directory_on_the_path(tmp_path):
    (tmp_path / "beside.py").write_text("import sys; print(__name__, sys.argv[1:])")
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "1", "--no-init", "-m", "beside", "--x"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert out.stdout == "[0] __main__ ['--x']\n"


def test_a_missing_script_and_a_bad_number_are_usage_errors(capsys):
    assert main(["run", "-n", "2", "none.py"]) == 1
    assert "There is no file none.py" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "-n", "0", "none.py"])
    assert "invalid number (1 to 1024) value: '0'" in capsys.readouterr().err


def test_the_environment():
    env = environment({"A": "b"}, "127.0.0.1:9", 4, 3, 100)
    assert (
        env.items()
        >= {
            "A": "b",
            "JAX_COORDINATOR_ADDRESS": "127.0.0.1:9",
            "JAX_COORDINATOR_BIND_ADDRESS": "127.0.0.1:9",
            "JAX_NUM_PROCESSES": "4",
            "JAX_PROCESS_ID": "3",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "100",
        }.items()
    )
    assert int(env["PJRT_NPROC"]) >= 200


def test_what_is_set_is_kept_unless_it_is_too_little():
    base = {"JAX_PLATFORMS": "cuda", "PJRT_NPROC": "3", "XLA_FLAGS": "--xla_force_host_platform_device_count=100"}
    env = environment(base, "127.0.0.1:9", 1, 0, None)
    assert (env["JAX_PLATFORMS"], env["XLA_FLAGS"]) == ("cuda", base["XLA_FLAGS"])
    assert "JAX_NUM_CPU_DEVICES" not in env
    assert int(env["PJRT_NPROC"]) >= 200
    assert environment(base, "127.0.0.1:9", 1, 0, 1)["PJRT_NPROC"] == "3"


def test_streams_prefix_lines_and_progress_bars():
    sink = io.BytesIO()
    stream = Stream(b"[1] ", sink)
    for part in (b"a", b"b\nc\r", b"d\r\ne", b"\n", b"f"):
        stream.feed(part)
    assert sink.getvalue() == b"[1] ab\n[1] c\r[1] d\r\n[1] e\n"
    stream.finish()
    assert sink.getvalue().endswith(b"[1] f\n")


def test_ranks_have_colours_in_a_terminal_that_has_some(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    labels = {label(rank, Terminal()) for rank in range(8)}
    assert len(labels) == 8
    assert label(3, Terminal()) == b"\x1b[35m[3]\x1b[0m "
    assert label(3, io.StringIO()) == b"[3] "
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert label(3, Terminal()) == b"[3] "


def test_a_silent_stream_keeps_its_end():
    stream = Stream(b"[1] ", None)
    stream.feed(b"x" * 20000 + b"\nlast")
    sink = io.BytesIO()
    stream.finish(sink)
    assert sink.getvalue().endswith(b"x\n[1] last\n")
    assert len(sink.getvalue()) < 9000


FAILS = """
import os, sys
print("start of", os.environ["JAX_PROCESS_ID"], os.environ["JAX_ENABLE_RECOVERABILITY"])
sys.exit(3 if os.environ["JAX_PROCESS_ID"] == sys.argv[1] else 0)
"""


@pytest.mark.slow
def test_a_process_that_fails_is_started_again_so_often(run):
    options = ("--no-init", "--restart", "1", "--restart-delay", "0")
    code, out, err = run(FAILS, "-n", "2", *options, arguments=("1",))
    assert code == 3
    assert sorted(out) == ["[0] start of 0 1", "[1] start of 1 1", "[1] start of 1 1"]
    assert err.count("process 1 failed with exit code 3 (script.py:4); it is started again in 0 s") == 1
    # Process 0 holds the coordination service.
    code, out, err = run(FAILS, "-n", "1", *options, arguments=("0",))
    assert (code, out) == (3, ["[0] start of 0 1"])
    assert "started again" not in err


def test_a_log_has_both_streams_and_ends_where_its_disk_is_full(tmp_path, capsys):
    said = []
    log = Log(str(tmp_path / "new"), 3, False, said.append)
    streams = [Stream(b"", None, log) for _ in range(2)]
    for stream, text in zip(streams, (b"out\n", b"err\n"), strict=True):
        stream.feed(text)
        stream.end()
    assert (tmp_path / "new" / "process_3.log").read_bytes() == b"out\nerr\n"
    assert log._file is None  # closed with the second stream
    (tmp_path / "process_0.log").symlink_to("/dev/full")
    full = Stream(b"", sys.stdout.buffer, Log(str(tmp_path), 0, True, said.append))
    full.feed(b"one\n")
    full.feed(b"two\n")
    full.end()
    assert said == ["cannot write the log of process 0: No space left on device; it ends here"]
    assert capsys.readouterr().out == "one\ntwo\n"


def test_a_full_disk_does_not_end_the_job(run, tmp_path):
    (tmp_path / "process_1.log").symlink_to("/dev/full")
    code, out, err = run(SAY_ALL, "-n", "2", "--no-init", "--log-dir", str(tmp_path))
    assert (code, sorted(out)) == (0, ["[0] out 0", "[1] out 1"])
    assert err.count("cannot write the log of process 1: No space left on device") == 1
    assert sorted((tmp_path / "process_0.log").read_text().splitlines()) == ["err", "out 0"]


def test_a_log_that_cannot_be_made_is_told_before_anything_starts(run, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = run(SAY_ALL, "-n", "2", "--no-init", "--log-dir", str(tmp_path / "file"))
    assert (code, out) == (1, [])
    assert "Traceback" not in err
    assert f"Cannot write the log of process 0, {tmp_path}/file/process_0.log: " in err


def test_the_launcher_of_one_host_says_its_summary(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import os; raise SystemExit(3 + int(os.environ['JAX_PROCESS_ID']))", encoding="utf-8")
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--no-init", REMOTE, str(script)]
    reads, writes = os.pipe()  # its input stays open
    try:
        done = subprocess.run(command, stdin=reads, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(reads)
        os.close(writes)
    assert done.returncode in (3, 4)
    assert " failed first: exit code " in done.stderr
