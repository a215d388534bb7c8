"""Ctrl-C where a command begins and where it ends: no traceback, and no process that goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

# In place of NumPy, which both import: what takes long to be imported, with a callback in which an exception is lost,
# as JAX has one.
SLOW = """
import time

class Callback:
    def __del__(self):
        print("importing", flush=True)
        time.sleep(60)

Callback()
print("imported", flush=True)
time.sleep(60)
"""
MODULES = {"command": ["jaxring.cli", "explain", "all_reduce"], "worker": ["jaxring.launcher.worker", "--no-init"]}


def interrupted(folder, line, arguments):
    """Runs a module with ``folder`` in its path and interrupts it at a line; returns its exit code and outputs."""
    argv = [sys.executable, "-P", "-m", *arguments]
    env = os.environ | {"PYTHONPATH": str(folder)}
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == f"{line}\n"
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    return child.returncode, out, err


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_while_the_command_or_a_worker_imports(tmp_path, module):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(SLOW)
    arguments = [*MODULES[module], str(os.getpid()), "script.py"] if module == "worker" else MODULES[module]
    assert interrupted(tmp_path, "importing", arguments) == (-signal.SIGINT, "", "")


# Loaded when Python starts: a callback of the garbage collector, as JAX has one, that an interrupt meets.
LOSES = """
import gc, signal, sys, time


def callback(phase, info):
    command, worker = hasattr(sys.modules.get("jaxring.cli"), "main"), "script" in sys.modules
    if (command or worker) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        gc.callbacks.remove(callback)
        print("inside", flush=True)
        time.sleep(60)


gc.callbacks.append(callback)
gc.set_threshold(50)  # so that it is called long before the command ends
"""


def test_an_interrupt_that_a_callback_loses_ends_the_command(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOSES)
    arguments = ["jaxring.cli", "explain", "all_reduce", "-n", "64x1", "--schedule"]
    code, _, err = interrupted(tmp_path, "inside", arguments)
    assert code == 130, err
    assert re.fullmatch("jaxring( explain)?: interrupted\n", err)


def test_an_interrupt_that_a_callback_loses_ends_a_worker(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LOSES)
    (tmp_path / "script.py").write_text(
        "import gc, sys, time\nsys.modules['script'] = sys\ngc.collect()\ntime.sleep(30)\n"
    )
    arguments = ["jaxring.launcher.worker", "--no-init", str(os.getpid()), str(tmp_path / "script.py")]
    code, _, err = interrupted(tmp_path, "inside", arguments)
    assert code == -signal.SIGINT, err
    assert "Exception ignored" not in err
    assert err.splitlines()[-1] == "KeyboardInterrupt"


# A job of no processes is made and ended, with an interrupt in another place each time: before each line, one after
# another, of our code and of what it calls. What Python runs when it ends must have nothing to say.
INTERRUPTED = """
import contextlib, itertools, pathlib, sys, tempfile
from multiprocessing import connection, util
from jaxring.bench import fleet
from jaxring.bench.peers import PEERS

FILES = {fleet.__file__, connection.__file__, util.__file__, contextlib.__file__}


def interrupting(number):
    lines = itertools.count()

    def trace(frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    return trace


interrupted, number = True, 0
while interrupted:
    interrupted = False
    sys.settrace(interrupting(number))
    try:
        with fleet.Crew(PEERS["jaxring"], 0, 1, {}):
            pass
    except KeyboardInterrupt:
        interrupted = True
    finally:
        sys.settrace(None)
    number += 1
print(number)
"""


def test_ctrl_c_anywhere_where_a_job_of_the_bench_begins_or_ends(tmp_path):
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 50
