"""Jobs that other launchers start: `jax.distributed.initialize()` finds out who takes part, jaxring asks it.

Where that call is forgotten there are several jobs, and a warning.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from jaxring import _compat
from jaxring.world import launchers
from tests import ROOT

pytestmark = pytest.mark.multiprocess

JOB = str(ROOT / "examples" / "clusters" / "job.py")


def environment(folder, **extra):
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PJRT_NPROC": "16",
        "SAID": str(folder),
        **extra,
    }


def said(folder):
    return [path.read_text() for path in sorted(folder.iterdir())]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
def test_mpirun(tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3", sys.executable, JOB]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for process in range(3):
        assert (
            f"process {process} of 3 on {socket.gethostname()}: the sum over 3 ranks is that of NumPy, 6" in done.stdout
        )


# Without jax.distributed.initialize(): two jobs. Process 0 starts another program, which is part of none.
FORGETFUL = """
import os, subprocess, sys
import jax
import jaxring
import numpy as np
y = jax.pmap(lambda v: jaxring.all_reduce(v, "x"), axis_name="x")(np.ones(1, np.float32))
jax.pmap(lambda v: jaxring.all_reduce(v, "x", op="max"), axis_name="x")(np.ones(1, np.float32))
child = "CHILD" in os.environ
rank = os.environ["OMPI_COMM_WORLD_RANK"]
if rank == "0" and not child:
    env = os.environ | {"CHILD": "1"}
    again = subprocess.run([sys.executable, sys.argv[0]], env=env, capture_output=True, text=True)
    with open(os.path.join(os.environ["SAID"], "child"), "w") as said:
        said.write(f"{again.returncode} {again.stderr}")
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
def test_mpirun_without_initialize_is_warned_of_once_by_each_process(tmp_path):
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    folder = tmp_path / "said"
    folder.mkdir()
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", "sh", "-c"]
    through_a_shell = f"{sys.executable} {script}; exit $?"
    done = subprocess.run(
        [*command, through_a_shell], env=environment(folder), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for process in range(2):
        warning = f"This is process {process} of 2 that Open MPI started (OMPI_COMM_WORLD_SIZE=2), but jax.distributed"
        assert done.stderr.count(warning) == 1, done.stderr
    assert done.stderr.count("Call jax.distributed.initialize(") == 2
    assert said(folder) == ["0 "]


SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}
SBATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (SRUN, "process 1 of 4 that Slurm started (SLURM_NTASKS=4)"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, "process 1 of 2 that Slurm started (SLURM_STEP_NUM_TASKS=2)"),
        (SRUN | {"PMIX_RANK": "1"}, "process 1 of 4 that Slurm started"),
        ({"PMIX_RANK": "3"}, "process 3 that PMIx started (PMIX_RANK=3)"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "process 0 of 2 that MPI started (PMI_SIZE=2)"),
        ({"JOB_COMPLETION_INDEX": "2"}, "process 2 that Kubernetes started (JOB_COMPLETION_INDEX=2)"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "process 1 of 2 that a launcher started (WORLD_SIZE=2)"),
        # One process, or one that cannot be told from one.
        ({}, ""),
        (SBATCH, ""),
        (SBATCH | {"SLURM_STEP_ID": "4294967291"}, ""),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ""),
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, ""),
        ({"PMIX_RANK": "0"}, ""),
        ({"JOB_COMPLETION_INDEX": "0"}, ""),
        ({"WORLD_SIZE": "8"}, ""),
        ({"RANK": "0", "WORLD_SIZE": "many"}, ""),
        ({"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"}, ""),  # `jaxring run --no-init`
    ],
)
def test_what_a_launcher_says(monkeypatch, caplog, environ, told):
    names = ("OMPI_", "PMI", "SLURM_", "JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE")
    for name in [name for name in os.environ if name.startswith(names)]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    launchers.warn_if_alone.__wrapped__()
    assert bool(caplog.messages) == bool(told)
    assert told in caplog.text


def test_an_initialised_job_of_one_process_is_meant(monkeypatch, caplog):
    monkeypatch.setattr(_compat, "distributed_state", lambda: _compat.DistributedState(object(), 0, 1, ""))
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value)
    launchers.warn_if_alone.__wrapped__()
    assert not caplog.messages


def test_variables_are_inherited_through_python_and_not_through_shells(tmp_path):
    def process(pid, parent, program, *variables):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) name) S {parent} 1 1")
        (folder / "environ").write_bytes(b"\0".join(variable.encode() for variable in variables))
        (folder / "exe").symlink_to(f"/usr/bin/{program}")

    process(1, 0, "init")
    process(10, 1, "mpirun", "PATH=/bin")
    process(20, 10, "bash", "PMI_SIZE=2")
    process(30, 20, "python3.12", "PMI_SIZE=2")
    process(40, 30, "sh", "PMI_SIZE=2")
    process(50, 40, "python3.12", "PMI_SIZE=2")
    launch = launchers.find({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert [launchers.inherited(launch, pid, tmp_path) for pid in (20, 30, 40, 50)] == [False, False, True, True]
    # A Python launcher that does not have them itself is not the program.
    process(60, 1, "python3.12", "PATH=/bin")
    process(70, 60, "python3.12", "PMI_SIZE=2")
    assert not launchers.inherited(launch, 70, tmp_path)
    assert not launchers.inherited(launch, 99, tmp_path)
