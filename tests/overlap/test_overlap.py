"""Compute between start and done runs while the collective is in flight: by counting, not by time."""

from __future__ import annotations

import os
import pathlib
import sys
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxring
from benchmarks import overlap
from tests import starting
from tests.overlap.over_program import operand, program

HERE = pathlib.Path(__file__).parent


class Held:
    """Rank 1 waits, once armed, until rank 0's step has run."""

    def __init__(self):
        self.armed, self.ran, self.seen = False, threading.Event(), []

    def hold(self, rank):
        if self.armed and rank == 1:
            self.ran.wait(20)

    def between(self, rank, in_flight):
        if self.armed and rank == 0:
            self.seen.append(in_flight)
            self.ran.set()


def launch(start, ordered, timeout):
    """What rank 0's step saw in flight."""
    held = Held()
    run = program(Mesh(jax.devices()[:2], ("r",)), start, held.hold, held.between, timeout=timeout, ordered=ordered)
    first = np.asarray(run(operand(2)))
    held.armed = True
    try:
        np.testing.assert_array_equal(np.asarray(run(operand(2))), first)
    finally:
        held.ran.set()
    return held.seen


@pytest.mark.parametrize("start", [jaxring.all_reduce_start, jaxring.all_gather_start], ids=lambda f: f.__name__)
def test_a_step_runs_while_the_collective_is_in_flight(start):
    assert launch(start, ordered=True, timeout=20) == [1]


def test_a_step_that_needs_the_result_does_not():
    with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED"):
        launch(jaxring.all_reduce_start, ordered=False, timeout=2)


@pytest.mark.multiprocess
def test_a_step_runs_while_another_process_has_not_begun(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA_", "PJRT_"))}
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--devices-per-process", "1"]
    result = starting.run(
        [*command, str(HERE / "over_worker.py"), str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_the_benchmark_runs_and_checks_its_results(capsys):
    assert overlap.main(["--bytes", "4K", "--products", "2", "--iters", "2"]) == 0
    out = capsys.readouterr().out
    for name in ("collective", "alone", "after", "overlapped", "hidden"):
        assert name in out
