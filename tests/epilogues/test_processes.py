"""Ranks of several processes get the bits that ranks of one process get, and a cast halves what is spread."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests import starting
from tests.epilogues import worker_epilogues
from tests.epilogues.worker_epilogues import RANKS, SIZE

pytestmark = pytest.mark.multiprocess

JAXRING = f"{sysconfig.get_path('scripts')}/jaxring"
WORKER = Path(worker_epilogues.__file__)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_layouts_agree(processes):
    each = str(RANKS // processes)
    command = [JAXRING, "run", "-n", str(processes), "--devices-per-process", each, str(WORKER)]
    done = starting.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("] ")[2] for line in done.stdout.splitlines()]
    here = worker_epilogues.digests()
    # All ranks and all algorithms have the same bits of an all-reduce, and each rank its own of a step.
    assert len(here) == 1 + RANKS
    theirs = [line for line in lines if line.startswith(("all_reduce", "adam"))]
    assert len(theirs) == processes + RANKS
    assert set(theirs) == set(here)
    sent = [line for line in lines if line.startswith("sent")]
    # A process of the ring has one neighbour in another process. It sends it 3 parts of 4 in each half.
    plain = 2 * (RANKS - 1) * SIZE // RANKS * 4
    assert sent == [f"sent {plain} {plain * 3 // 4}"] * processes
