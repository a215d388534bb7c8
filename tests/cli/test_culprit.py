"""`jaxring run` says which process failed first, and why, when the failure of one makes others fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from jaxring.cli import main
from jaxring.launcher import failure_report
from jaxring.launcher.failures import Failures, is_exiting

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

LOOP = """
import os, signal, sys
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import jaxring
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(float(n))[i])
f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
for step in range(8):
    f(x).block_until_ready()
    if step == 3 and jax.process_index() == 1:
        if sys.argv[1] == "raise":
            raise ValueError("my own bug")
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "code", "cause"),
    [("raise", 1, r"ValueError: my own bug \(script.py:14\)"), ("kill", 137, "ended by SIGKILL")],
)
def test_the_first_to_fail_is_named_not_those_that_it_takes_along(run, how, code, cause):
    ended, _, err = run(LOOP, "-n", "3", arguments=(how,), env={"TMPDIR": os.environ["SCRATCH_TRACES"]})
    assert ended == code, err
    # On a busy machine they may have to be ended before they can say so.
    one = "process [02] failed because of it; process [02] had to be ended"
    rest = f"(processes 0 and 2 failed because of it|{one}|processes 0 and 2 had to be ended)"
    assert re.fullmatch(f"jaxring run: process 1 failed first: {cause}; {rest}", err.splitlines()[-1]), err
    # No frame of the launcher's between the traceback's head and the script.
    assert "runpy" not in err
    assert "worker.py" not in err


@pytest.fixture(autouse=True)
def _records(tmp_path, monkeypatch):
    """Processes that fail leave their flight records, which are not what is tested."""
    (tmp_path / "traces").mkdir()
    monkeypatch.setenv("SCRATCH_TRACES", str(tmp_path / "traces"))


# These need no JAX: what is tested is the launcher.
LINGERS = """
import atexit, os, sys, time
if os.environ["JAX_PROCESS_ID"] == "0":
    atexit.register(time.sleep, 600)
    sys.exit(int(sys.argv[1])) if sys.argv[1:] else open("/nowhere/at/all")
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("3",)])
def test_a_failure_counts_when_it_happens_not_when_the_process_exits(run, arguments):
    code, _, err = run(LINGERS, "-n", "2", "--no-init", arguments=arguments)
    what = "exit code 3" if arguments else "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all'"
    assert code == (3 if arguments else 1)
    assert err.splitlines()[-1] == (
        f"jaxring run: process 0 failed first: {what} (script.py:5); process 1 had to be ended"
    )


AT_ONCE = """
import os, pathlib, time
(pathlib.Path(os.environ["SCRATCH"]) / f"here{os.environ['JAX_PROCESS_ID']}").touch()
while len(list(pathlib.Path(os.environ["SCRATCH"]).glob("here*"))) < 3:
    time.sleep(0.01)
os.nothing
"""


def test_a_bug_of_all_processes_is_no_consequence(run):
    code, _, err = run(AT_ONCE, "-n", "3", "--no-init")
    assert code == 1
    assert re.search(
        r"process \d failed first: AttributeError: module 'os' has no attribute 'nothing' \(script.py:6\); "
        r"processes \d and \d failed in the same way\n$",
        err,
    )


def test_a_script_that_is_not_python_is_said_once(run):
    code, out, err = run("x = (1,\ny = 2\n", "-n", "3", "--no-init")
    assert (code, out) == (1, [])
    assert err.count("SyntaxError") == 1
    assert "script.py" in err
    assert "[" not in err.partition("(")[0], "a process has said it"


def test_a_module_that_is_not_there_is_said_once(capfd):
    assert main(["run", "-n", "3", "-m", "nosuch.module"]) == 1
    assert capfd.readouterr().err == "jaxring run: There is no module nosuch.\n"


WAITS = """
import os, pathlib, time
(pathlib.Path(os.environ["SCRATCH"]) / f"here{os.environ['JAX_PROCESS_ID']}").touch()
time.sleep(600)
"""


def test_ctrl_c_is_said_in_one_line(start, tmp_path):
    child = start(WAITS, "-n", "3", "--no-init")
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"here{rank}").exists() for rank in range(3)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert err.startswith("jaxring run: interrupted; process"), err
    assert err.count("\n") == 1, err
    if "script.py:3" not in err:  # where one says that it is there
        assert err == "jaxring run: interrupted; processes 0, 1 and 2 were at script.py:4\n"


# Process 0 is interrupted in a call, with "first" while that is planned, since process 1 has joined nobody yet, and
# with "lost" a moment before, in a callback of the garbage collector, where Python loses what it raises.
COLLECTIVE = """
import gc, os, pathlib, sys, threading, time
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import jaxring
mesh = jax.make_mesh((2,), ("x",))
x = jax.make_array_from_callback((2,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(2.0)[i])
f = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
if sys.argv[1:] != ["first"]:
    f(x).block_until_ready()
def say(waits=sys.argv[1:] != ["lost"]):
    while waits and jax.process_index() == 0 and not jaxring.counters()["in_flight"]:
        time.sleep(0.01)
    (pathlib.Path(os.environ["SCRATCH"]) / f"here{jax.process_index()}").touch()
def lose(phase, info):
    gc.callbacks.remove(lose)
    say()
    time.sleep(600)
if sys.argv[1:] == ["lost"] and jax.process_index() == 0:
    gc.callbacks.append(lose)
    gc.collect()
else:
    threading.Thread(target=say).start()
if jax.process_index():
    time.sleep(600)
f(x).block_until_ready()
"""


@pytest.mark.parametrize("arguments", [(), ("first",), ("lost",)], ids=["running", "planned", "lost"])
def test_ctrl_c_in_a_collective_is_said_in_one_line_and_the_record_is_kept(start, tmp_path, arguments):
    traces = tmp_path / "traces"
    child = start(COLLECTIVE, "-n", "2", arguments=arguments, env={"TMPDIR": str(traces)})
    deadline = time.monotonic() + 100
    while not all((tmp_path / f"here{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 130
    # Process 1 may still be at the line that starts its thread.
    assert re.fullmatch(
        r"jaxring run: interrupted; process 0 was at script.py:26, process 1 at script.py:2[345]\n", err
    )
    # What was not planned yet is no operation.
    assert arguments or list(traces.glob("**/*.trace")), "the record of the operation that was interrupted"


def test_what_failed_before_ctrl_c_was_not_interrupted():
    failures = Failures()
    for rank in (0, 3):
        failures.reported(rank, interrupted("a.py:4"))
    failures.reported(2, interrupted("a.py:9"))
    failures.reported(*of(1, 1.0))
    places = "processes 0 and 3 were at a.py:4, process 2 at a.py:9"
    assert failures.interrupted() == f"interrupted; {places}; process 1 failed: ValueError: by 1 (a.py:1)"
    assert Failures().interrupted() == "interrupted"


def interrupted(where):
    return failure_report.Report(2.0, failure_report.INTERRUPTED, "KeyboardInterrupt", "", where, False)


def of(rank, when, echo=False):
    return rank, failure_report.Report(when, 1, "ValueError", f"by {rank}", "a.py:1", echo)


def test_the_oldest_report_is_the_first_failure_whatever_order_they_are_read_in():
    failures = Failures()
    failures.reported(*of(0, 12.0, echo=True))
    failures.reported(*of(2, 11.0))
    assert failures.decide({}).rank == 2
    failures.ended(1, -signal.SIGABRT, by_launcher=False)
    failures.ended(3, 7, by_launcher=False)
    failures.ended(4, -signal.SIGKILL, by_launcher=True)
    assert failures.summary() == (
        "process 2 failed first: ValueError: by 2 (a.py:1); processes 0 and 1 failed because of it; "
        "process 3 failed after it: exit code 7; process 4 had to be ended"
    )


def test_a_process_that_dies_is_waited_for_before_a_report_is_believed():
    # Killed, and a zombie until it is reaped: what the kernel closed when it died may be why another one reports.
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not is_exiting(victim.pid)
        victim.kill()
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        failures = Failures()
        failures.reported(*of(0, 1.0, echo=True))
        assert failures.decide({0: os.getpid(), 1: victim.pid}) is None
        restarted = Failures()
        restarted.reported(*of(0, 1.0))
        assert restarted.decide({0: os.getpid(), 1: victim.pid}) is None
        failures.ended(1, victim.wait(), by_launcher=False)
        first = failures.decide({0: os.getpid()})
        # One that was started again is not the one that died.
        assert restarted.decide({0: os.getpid(), 1: os.getpid()}).rank == 0
    finally:
        victim.kill()
        victim.wait()
    assert (first.rank, first.code) == (1, 137)
    assert failures.summary() == "process 1 failed first: ended by SIGKILL; process 0 failed because of it"


def test_a_report_survives_the_pipe_and_nothing_else_does():
    try:
        raise ValueError("é" * 1000 + "\nmore")
    except ValueError as error:
        sent, place = failure_report.describe(error), error.__traceback__
    assert failure_report.decode(failure_report.encode(sent)) == sent
    assert len(failure_report.encode(sent)) < 4096
    assert sent.where.startswith("test_culprit.py:")
    assert not sent.echo
    mistyped = failure_report.encode(sent).replace(b'"code": 1', b'"code": "1"')
    for bad in (b"", b"{", b"[]", b"1", b'{"when": 1}', mistyped):
        assert failure_report.decode(bad) is None
    try:
        json.loads("{")
    except ValueError as error:
        library = error.__traceback__.tb_next
    for trace in (None, library):
        interrupt = KeyboardInterrupt().with_traceback(trace)
        interrupt.__context__ = RuntimeError().with_traceback(place)
        assert str(failure_report.describe(interrupt)) == f"KeyboardInterrupt ({sent.where})"
    assert failure_report.describe(SystemExit(0)) is None
    assert str(failure_report.describe(SystemExit(3))) == "exit code 3"
    assert str(failure_report.describe(SystemExit("no data"))) == "SystemExit: no data"
