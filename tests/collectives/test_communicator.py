"""Collectives on NumPy arrays among processes, outside of programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

WORKER = Path(__file__).with_name("worker_communicator.py")


def test_every_collective_gives_what_numpy_does():
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", str(WORKER)]
    # Checked, and late by turns, which changes no answer.
    harm = {
        "JAXRING_CHECKSUM": "1",
        "JAXRING_NAN_CHECK": "error",
        "JAXRING_FAULTS": "seed=1,delay=0.1,delay_us=500,duplicate=0.02",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | harm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as NumPy has it" in done.stdout
