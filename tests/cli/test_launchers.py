"""Jobs that other launchers start: `jax.distributed.initialize()` finds out who takes part, jaxring asks it."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
import os
import jax
jax.distributed.initialize()
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxring

n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(1.0, n + 1)[i])
y = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
# A file per process: launchers mix what their processes print.
with open(os.path.join(os.environ["SAID"], str(jax.process_index())), "w") as said:
    said.write(f"process {jax.process_index()} of {jax.process_count()}: {float(y.addressable_data(0)[0])}")
"""


def environment(folder, **extra):
    root = str(pathlib.Path(__file__).parent.parent.parent)
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
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
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3", sys.executable]
    done = subprocess.run(
        [*command, "-c", SCRIPT], env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert said(tmp_path) == [f"process {i} of 3: 6.0" for i in range(3)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_slurm(tmp_path):
    # What `srun` sets for the tasks of a step. The coordinator's address is given, as the node's name is not ours.
    address = f"127.0.0.1:{free_port()}"
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT.replace("initialize()", f"initialize({address!r})")],
            env=environment(
                tmp_path,
                SLURM_JOB_ID="70001",
                SLURM_STEP_NODELIST="localhost",
                SLURM_NTASKS="2",
                SLURM_PROCID=str(task),
                SLURM_LOCALID=str(task),
                SLURM_STEP_NUM_NODES="1",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(2)
    ]
    try:
        done = [task.communicate(timeout=120) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [0, 0], [err[-2000:] for _, err in done]
    assert said(tmp_path) == ["process 0 of 2: 3.0", "process 1 of 2: 3.0"]
