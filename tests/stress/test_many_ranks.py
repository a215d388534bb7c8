"""More ranks than cores: everybody gets on, and who waits leaves the cores to the others."""

from __future__ import annotations

import pathlib

import pytest

from tests.stress.stress_jobs import run_job

WORKER = str(pathlib.Path(__file__).parent / "worker_ranks.py")

pytestmark = pytest.mark.multiprocess


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(8, 8), (16, 1)], ids=["8x8", "16x1"])
def test_a_mebibyte_by_every_algorithm(tmp_path, processes, devices):
    for out in run_job(tmp_path, [WORKER, "many"], processes, devices, timeout_s=280, JAXRING_TIMEOUT="200"):
        assert "direct" in out
        assert out.splitlines()[-1] == "checked"


@pytest.mark.slow
@pytest.mark.parametrize("shm", ["shm", "tcp"])
def test_who_waits_does_not_spin(tmp_path, shm):
    outputs = run_job(tmp_path, [WORKER, "late", str(tmp_path)], 3, 2, JAXRING_SHM_DISABLE=str(int(shm == "tcp")))
    for out in outputs[:-1]:
        lines = [line.split() for line in out.splitlines() if line.startswith("waited")]
        assert len(lines) == 2
        for _, waited, _, used in lines:
            assert float(waited) >= 2
            assert float(used) < 0.5
