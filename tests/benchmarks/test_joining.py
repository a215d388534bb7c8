"""The benchmark of a process that joins, with little state: it checks by itself that what comes is the state."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT
from tests.hosts.hosts_netns import hosts


@pytest.mark.netns
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_it_measures_both_ways():
    with hosts(1):
        pass  # skips where none can be made
    command = [sys.executable, "-m", "benchmarks.joining", "--bytes", "1M", "--iters", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jaxring.rebuild and the state / a TCP connection: " in done.stdout, done.stdout
