"""Many devices of one process: what a handler that blocks, or that confuses call sites, cannot do."""

from __future__ import annotations

import pathlib

import pytest

from tests.stress.stress_jobs import run_job

WORKER = str(pathlib.Path(__file__).parent / "worker_cases.py")


def run(tmp_path, case, devices):
    assert run_job(tmp_path, [WORKER, case], devices=devices) == ["checked\n"]


@pytest.mark.parametrize(
    "devices", [8, pytest.param(16, marks=pytest.mark.slow), pytest.param(32, marks=pytest.mark.slow)]
)
def test_64_independent_collectives_in_one_program(tmp_path, devices):
    run(tmp_path, "independent", devices)


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.sampled(2)
def test_2000_launches_without_blocking(tmp_path, devices):
    run(tmp_path, "launches", devices)


@pytest.mark.parametrize(
    "case", ["threads_with_different_programs", "threads_with_one_program", "threads_with_equal_programs"]
)
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.sampled(5)
def test_four_threads_dispatch_at_once(tmp_path, case, devices):
    run(tmp_path, case, devices)


@pytest.mark.parametrize(
    "case",
    [
        "scan",
        "while_loop",
        "while_loop_of_groups",
        "branches",
        "cond_in_scan",
        "inner_jit",
        "checkpoint",
        "donation",
        "with_psum",
    ],
)
@pytest.mark.sampled(4)
def test_program_shapes(tmp_path, case):
    run(tmp_path, case, 8)
