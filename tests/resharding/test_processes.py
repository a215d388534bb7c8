"""Random shardings over several processes: right to the byte, and no byte sent that need not be."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests import starting
from tests.resharding import worker_reshard

pytestmark = pytest.mark.multiprocess

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"


@pytest.mark.parametrize(
    ("processes", "devices", "examples"),
    [
        (2, 2, 25),
        pytest.param(3, 1, 30, marks=pytest.mark.slow),
        pytest.param(4, 4, 30, marks=pytest.mark.slow),
    ],
)
def test_random_shardings(processes, devices, examples):
    command = [JAXRING, "run", "-n", str(processes), "--devices-per-process", str(devices), "--output", "rank0"]
    command += [worker_reshard.__file__, str(examples)]
    done = starting.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stdout + done.stderr
    count, moved = done.stdout.splitlines()[-1].split()[1:]
    assert int(count) == examples + 1
    assert int(moved) > 0
