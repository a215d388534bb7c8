"""Random shardings over several processes: right to the byte, and no byte sent that need not be."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests import starting
from tests.resharding import worker_programs, worker_reshard

pytestmark = pytest.mark.multiprocess

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"


def job(processes, devices, worker, *arguments):
    """The lines that the first process prints."""
    command = [JAXRING, "run", "-n", str(processes), "--devices-per-process", str(devices), "--output", "rank0"]
    command += [worker.__file__, *map(str, arguments)]
    done = starting.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("processes", "devices", "examples"),
    [
        (2, 2, 25),
        pytest.param(3, 1, 30, marks=pytest.mark.slow),
        pytest.param(4, 4, 30, marks=pytest.mark.slow),
        *(pytest.param(*grid, 15, marks=pytest.mark.slow) for grid in [(1, 4), (2, 1), (2, 3), (3, 4), (4, 1), (4, 2)]),
    ],
)
def test_random_shardings(processes, devices, examples):
    count, moved = job(processes, devices, worker_reshard, examples)[-1].split()[1:]
    assert int(count) == examples + 1
    assert (int(moved) > 0) == (processes > 1)


@pytest.mark.parametrize(
    ("processes", "devices", "pairs"),
    [(2, 2, 5), pytest.param(3, 2, 6, marks=pytest.mark.slow)],
)
def test_which_arrays_a_program_moves(processes, devices, pairs):
    """And values where layouts, memory kinds and meshes in scope are unusual, by programs and in rounds."""
    assert job(processes, devices, worker_programs)[-2:] == [f"programs {pairs}", "right"]
