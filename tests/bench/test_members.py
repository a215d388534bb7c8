"""The processes of `jaxring bench`: one that has gone is named, and none outlives who has started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from jaxring.bench import peers
from jaxring.bench.fleet import Crew
from jaxring.errors import JaxringError
from tests.leftovers import lives

pytestmark = pytest.mark.multiprocess


def test_a_member_that_has_gone_between_two_requests_is_named():
    with Crew(peers.PEERS["xla"], 1, 1, {}) as crew:
        (child,) = crew._children
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its end of the connection is closed
        with pytest.raises(JaxringError, match=r"A process of XLA.* ended, killed by signal 9\."):
            crew.ask("choice")


# Process 0 waits in a collective for process 1, which sleeps.
CONTROLLER = """
import time
from jaxring.bench.fleet import Crew
from jaxring.bench.peers import PEERS
from jaxring.bench.work import Case

with Crew(PEERS["jaxring"], 2, 1, {}) as crew:
    crew.ask("prepare", Case("all_reduce", "sum", "float32", 64))
    crew.ask("run", (1, 1))
    crew._members[0].send(("run", (1, 1)))
    print(*(child.pid for child in crew._children), flush=True)
    time.sleep(600)
"""


def test_no_member_outlives_a_controller_that_is_killed():
    with tempfile.TemporaryDirectory() as folder:  # the members' socket stays there, whose path has to be short
        killed(os.environ | {"TMPDIR": folder})


def killed(env):
    child = subprocess.Popen([sys.executable, "-c", CONTROLLER], env=env, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in child.stdout.readline().split()]
    child.kill()
    child.communicate()
    try:
        assert len(pids) == 2
        deadline = time.monotonic() + 60
        while any(map(lives, pids)):
            assert time.monotonic() < deadline, "a member lives on"
            time.sleep(0.02)
    finally:
        for pid in filter(lives, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
