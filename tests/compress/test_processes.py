"""Ranks of several processes get the bits that ranks of one process get."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests import starting
from tests.compress import lone_worker, worker_compressed
from tests.compress.bounds import NAMES
from tests.stress.stress_jobs import Job, coordinator_port, environment, member

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"
WORKER = Path(worker_compressed.__file__)


@pytest.mark.parametrize(("processes", "ranks"), [(2, 4), (2, 2), pytest.param(4, 4, marks=pytest.mark.slow)])
def test_layouts_agree(processes, ranks):
    options = ["-n", str(processes), "--devices-per-process", str(ranks // processes), "--output", "rank0"]
    command = [JAXRING, "run", *options, str(WORKER), str(ranks)]
    done = starting.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    here = worker_compressed.digests(ranks)
    assert len(here) == len(NAMES) * 2 * 2  # a digest each: all ranks have the same bits
    counted, needed = next(line for line in done.stdout.splitlines() if line.startswith("sent")).split()[1:]
    assert counted == needed != "0"
    assert [line for line in done.stdout.splitlines() if line.startswith(NAMES)] == here


def test_a_rank_that_is_left_alone_has_its_own_values(tmp_path):
    with Job(tmp_path) as job, coordinator_port() as port:
        for process in range(2):
            env = member(environment(1, FOLDER=str(tmp_path)), f"127.0.0.1:{port}", 2, process)
            job.start([sys.executable, "-X", "faulthandler", lone_worker.__file__], env)
        lost = job.wait_for_line(0, "failed: ")
        assert "jaxring.all_reduce sum of float32[1,5000]" in lost
        assert "lost rank 1 (process 1" in lost
        assert "members (0,)" in job.wait_for_line(0, "members")
        assert job.wait_for_line(0, "alone")
        (tmp_path / "over").touch()
        job.wait()
