"""Two levels between processes."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests import starting

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"
WORKER = Path(__file__).with_name("worker_moe.py")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_levels_give_the_bits_of_flat():
    command = [JAXRING, "run", "-n", "2", "--devices-per-process", "2", str(WORKER)]
    done = starting.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for process in range(2):
        assert f"raised in process {process}" in done.stdout
