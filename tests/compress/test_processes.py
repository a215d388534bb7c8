"""Ranks of several processes get the bits that ranks of one process get."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests import starting
from tests.compress import worker_compressed
from tests.compress.bounds import NAMES

pytestmark = pytest.mark.multiprocess

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"
WORKER = Path(worker_compressed.__file__)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_layouts_agree(processes):
    each = str(worker_compressed.RANKS // processes)
    command = [JAXRING, "run", "-n", str(processes), "--devices-per-process", each, "--output", "rank0", str(WORKER)]
    done = starting.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    here = worker_compressed.digests()
    assert len(here) == len(NAMES) * 2 * 2  # a digest each: all ranks have the same bits
    counted, needed = next(line for line in done.stdout.splitlines() if line.startswith("sent")).split()[1:]
    assert counted == needed != "0"
    assert [line for line in done.stdout.splitlines() if line.startswith(NAMES)] == here
