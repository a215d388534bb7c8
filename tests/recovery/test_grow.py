"""A job to which processes are added, and which loses one in between, ends with the weights of an undisturbed one."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

from tests.recovery import grow_job
from tests.stress.stress_jobs import Job, coordinator_port, environment

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SCRIPT = str(pathlib.Path(__file__).parent / "grow_job.py")


def test_a_job_grows_loses_a_process_and_grows_again(tmp_path):
    with Job(tmp_path) as job, coordinator_port() as one, coordinator_port() as two, coordinator_port() as three:
        at = [f"127.0.0.1:{port}" for port in (one, two, three)]
        env = environment(JAX_ENABLE_RECOVERABILITY="1")
        for arguments in (
            ("first", at[0], "0", "2", at[1], at[2]),
            ("victim", at[0], "1", "2", at[1], at[2]),
            ("joiner", at[1], "2", "3", at[2]),
            ("joiner", at[2], "2", "3"),
        ):
            job.start([sys.executable, "-X", "faulthandler", SCRIPT, *arguments], env)
        results = job.wait(150)
    assert [result.code for result in results] == [0, -9, 0, 0], str(job)
    w = np.zeros(4)
    for _ in range(3 * grow_job.STEPS):
        w = w - grow_job.RATE / grow_job.ROWS * (grow_job.X.T @ (grow_job.X @ w - grow_job.Y))
    ends = {line for result in results for line in result.out.splitlines() if line.startswith("end ")}
    assert len(ends) == 1, ends  # the same bits everywhere
    _, steps, bits = ends.pop().split()
    assert int(steps) == 3 * grow_job.STEPS
    np.testing.assert_allclose(np.frombuffer(bytes.fromhex(bits), np.float32), w, rtol=1e-5)
    assert "grown to (0, 1, 2)" in results[0].out
    assert "lost at step " in results[0].out
