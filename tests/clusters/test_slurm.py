"""The batch script of examples/clusters/, submitted to a Slurm of one node."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from tests import ROOT
from tests.clusters.slurm_cluster import slurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.skipif(shutil.which("sbatch") is None, reason="needs Slurm (slurm-wlm, munge)"),
]
SCRIPT = str(ROOT / "examples" / "clusters" / "slurm.sh")
# A job that goes wrong ends by this.
LIMIT_S = 120


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm(pathlib.Path(folder)) as environ:
        names = ("JAX_", "JAXRING_", "PJRT_")
        clean = {name: value for name, value in environ.items() if not name.startswith(names)}
        path = f"{pathlib.Path(sys.executable).parent}:{clean['PATH']}"
        yield clean | {"PATH": path, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PJRT_NPROC": "16"}


def submit(environ, folder, tasks, *program):
    """The job's exit code and what it printed."""
    out = folder / "out"
    shape = ["--nodes=1", f"--ntasks-per-node={tasks}", "--cpus-per-task=1", f"--output={out}", "--time=00:02:00"]
    env = environ | {"JAXRING_TRACE_DIR": str(folder / "records")}
    job = said(["sbatch", "--parsable", *shape, SCRIPT, *program], env)
    deadline = time.monotonic() + LIMIT_S
    while True:  # sbatch --wait looks every ten seconds
        state = dict(re.findall(r"(\w+)=(\S+)", said(["scontrol", "show", "job", "-o", job.strip()], env)))
        if state["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"):
            return state["ExitCode"], out.read_text(errors="replace")
        assert time.monotonic() < deadline, f"{state}\n{out.read_text(errors='replace')}"
        time.sleep(0.1)


def said(command, env):
    return subprocess.run(
        command, cwd=ROOT, env=env, timeout=LIMIT_S, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("tasks", [2, 4])
def test_every_task_is_a_process_of_one_job(cluster, tmp_path, tasks):
    code, printed = submit(cluster, tmp_path, tasks)
    assert code == "0:0", printed
    assert f"{tasks} processes on 1 host(s)" in printed, printed
    links = re.findall(r"^ +(\d) +(\d)  shm .* \d+\.\d\d$", printed, re.M)
    assert len(set(links)) == tasks * (tasks - 1), printed
    total = tasks * (tasks + 1) // 2
    for task in range(tasks):
        line = rf"^{task}: process {task} of {tasks} on .*: the sum .* is that of NumPy, {total}$"
        assert re.search(line, printed, re.M), printed
    line = r"^0: all_reduce\(sum\) float32 16 B over 'data' at job.py:.*transport shm"
    assert re.search(line, printed, re.M), printed
    assert len(list((tmp_path / "records").iterdir())) == tasks
