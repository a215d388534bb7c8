"""Programs of other libraries in plain `jit`, sharded by the compiler: the losses with their collectives on jaxring.

None of them has a collective, or knows of jaxring.
"""

from __future__ import annotations

import os
import pathlib
import sys

import pytest

from tests import ROOT
from tests.frameworks import fw_whole_program
from tests.stress.stress_jobs import Job, environment

# A module, and what it needs beside Optax; all come with the extra "test".
PROGRAMS = {"fsdp_nnx": "flax", "tests.frameworks.fw_equinox_jit": "equinox", "tests.frameworks.fw_optax_jit": "optax"}


@pytest.mark.parametrize("module", PROGRAMS)
@pytest.mark.sampled(3)
def test_one_process(module):
    for library in (PROGRAMS[module], "optax"):
        pytest.importorskip(library)
    fw_whole_program.compare(module)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_two_processes(tmp_path):
    for library in {*PROGRAMS.values()}:
        pytest.importorskip(library)
    env = environment(2)
    env["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'examples'}"
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", "2"]
    with Job(tmp_path) as job:
        job.start([*command, str(pathlib.Path(fw_whole_program.__file__)), *PROGRAMS], env)
        (result,) = job.wait(250)
    assert result.code == 0, str(result)
    assert result.out.count("the same") == 2
