"""Collectives on NumPy arrays among processes, outside of programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

WORKER = Path(__file__).with_name("worker_communicator.py")


def test_every_collective_gives_what_numpy_does():
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "3", str(WORKER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as NumPy has it" in done.stdout
