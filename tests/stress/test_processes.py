"""The same between processes, where what one process does first another may do last."""

from __future__ import annotations

import pathlib

import pytest

from tests.stress.stress_jobs import run_job

WORKER = str(pathlib.Path(__file__).parent / "worker_cases.py")

pytestmark = pytest.mark.multiprocess


def run(tmp_path, cases, processes, devices):
    for out in run_job(tmp_path, [WORKER, *cases], processes, devices):
        assert out.splitlines()[-1] == "checked"  # after what Gloo has to say


layouts = pytest.mark.parametrize(
    ("processes", "devices"), [pytest.param(2, 4, marks=pytest.mark.slow), (4, 1)], ids=["2x4", "4x1"]
)


@layouts
@pytest.mark.slow
def test_64_collectives_each_in_programs_of_two_threads(tmp_path, processes, devices):
    run(tmp_path, ["programs_of_two_threads"], processes, devices)


@layouts
@pytest.mark.slow
def test_program_shapes(tmp_path, processes, devices):
    cases = ["scan", "while_loop", "while_loop_of_groups", "branches", "cond_in_scan"]
    cases += ["inner_jit", "checkpoint", "donation", "with_psum"]
    run(tmp_path, cases, processes, devices)


@layouts
@pytest.mark.slow
def test_2000_launches_without_blocking(tmp_path, processes, devices):
    run(tmp_path, ["launches"], processes, devices)
