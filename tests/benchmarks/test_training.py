"""The demo's training step in profiles: what is taken from them, and a short run."""

import os
import re
import sys

import numpy as np
import pytest

from benchmarks.training import last_arrivals_and_ends
from tests import starting

JOB = ["-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", "2", "--output", "rank0", "-m"]


def test_a_collective_lasts_from_the_last_arrival_to_the_last_end():
    # Two steps of three local ranks.
    found = [(10, 25), (12, 25), (20, 30), (50, 71), (55, 70), (56, 70)]
    np.testing.assert_array_equal(last_arrivals_and_ends(found, 2), [[20, 30], [56, 71]])
    for wrong in [found[1:], []]:
        with pytest.raises(RuntimeError, match="collectives in a profile of 2 steps"):
            last_arrivals_and_ends(wrong, 2)


@pytest.mark.slow
def test_both_programs_of_a_job_are_measured():
    done = starting.run(
        [sys.executable, *JOB, "benchmarks.training", "--turns", "2", "--steps", "2"],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PJRT_NPROC": "16"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collectives, steps = done.stdout.split("whole steps")
    for text, pattern in [(collectives, r" +([\d.]+)"), (steps, r"\s+([\d.]+)\s+ms")]:
        times = dict(re.findall(r"(jaxring.all_reduce|lax.psum)" + pattern, text))
        assert times.keys() == {"jaxring.all_reduce", "lax.psum"}
        assert all(float(ms) > 0 for ms in times.values())
