"""What the check of random programs of plain `jit` takes for a fault in programs that round to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from tests.random.rnd_partitioned_check import Result, _Run


@pytest.mark.parametrize(
    ("xla", "ours", "faults"),
    [(0.0, 0.05, True), (0.0, 0.01, False), (0.03, 0.05, False), (0.2, 0.35, True)],
    ids=["wrong", "rounded", "rounded as XLA does", "too far from XLA"],
)
def test_errors_are_held_against_float64(xla, ours, faults):
    run = _Run.__new__(_Run)
    run.result, run.rough = Result(), True
    run.exact, run.expected, got = ([{"all": np.full(3, value, np.float32)}] for value in (0.0, xla, ours))
    run.got = [got, got]
    run.compare()
    assert bool(run.result.faults) == faults, run.result.faults
