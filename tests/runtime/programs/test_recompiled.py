"""What one process alone compiles again, and runs or not, delays and mixes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import starting

pytestmark = pytest.mark.multiprocess

WORKER = Path(__file__).with_name("worker_recompiled.py")


@pytest.mark.parametrize(("devices", "case", "says"), [(2, "right", "right"), (1, "differ", "told")])
@pytest.mark.sampled(2)
def test_a_process_compiles_more_often_than_the_others(devices, case, says):
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", str(devices)]
    # A deadline that only ends what hangs.
    environment = os.environ | {"JAXRING_TIMEOUT": "30"}
    done = starting.run(
        [*command, str(WORKER), case], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(says) == 2
