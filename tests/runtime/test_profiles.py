"""Processes of a job choose by their machine's profile where all have the same one."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest

from jaxring.plan.profile import Measured
from jaxring.plan.profile_file import COMMODITY
from jaxring.plan.tuner import choose
from jaxring.topology import calibration
from jaxring.topology.cache import machine_kind
from tests import starting

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

JOB = """
import os, sys
os.environ["XDG_CACHE_HOME"] = sys.argv[1 + int(os.environ["JAX_PROCESS_ID"])]
import numpy as np
import jaxring
from jaxring.world import launch
launch.initialize()
comm = jaxring.Communicator()
total = comm.all_reduce(np.ones(1024, np.float32))
assert (total == 2).all()
(plan,) = jaxring.plans()
print(f"took {plan.algorithm}/{plan.protocol}: {plan.reason}")
"""


def run(tmp_path, *caches):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", str(script), *map(str, caches)]
    done = starting.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    took = [line.partition("took ")[2] for line in done.stdout.splitlines() if "took " in line]
    assert len(took) == 2
    assert took[0] == took[1]
    return took[0], done.stderr


@pytest.fixture
def upside_down(monkeypatch, tmp_path):
    """A cache with a profile by which the slowest candidate of the job's all-reduce is the fastest; its name."""
    names = [name for name, _ in choose("all_reduce", (0, 1), (0, 0), 4096, "float32").candidates]
    times = [
        Measured("all_reduce", *name.split("/"), 2, 1, 1, (4096,), (100.0 - place,)) for place, name in enumerate(names)
    ]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calibration.save(dataclasses.replace(COMMODITY, kind=machine_kind(), measured=tuple(times)))
    return tmp_path / "cache", names[-1]


def test_one_profile_decides(tmp_path, upside_down):
    cache, last = upside_down
    took, err = run(tmp_path, cache, cache)
    assert took.startswith(f"{last}: ")
    assert "as measured on this kind of machine" in took
    assert "profile" not in err


def test_two_profiles_leave_it_to_the_built_in_one(tmp_path, upside_down):
    cache, last = upside_down
    took, err = run(tmp_path, cache, tmp_path / "none")
    assert not took.startswith(f"{last}: ")
    assert "measured" not in took
    assert "process 0" in err
    assert "process 1" in err
    assert "have different profiles of their machines (`jaxring tune`)" in err
