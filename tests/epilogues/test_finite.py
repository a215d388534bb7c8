"""JAXRING_NAN_CHECK=error and epilogues whose results have another dtype than the data."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.epilogues.worker_finite import RANKS, SIZE
from tests.stress.stress_jobs import run_job

WORKER = str(pathlib.Path(__file__).with_name("worker_finite.py"))

pytestmark = pytest.mark.multiprocess


def test_results_and_states_are_looked_at_in_their_own_dtype(tmp_path):
    settings = {"JAXRING_NAN_CHECK": "error", "TMPDIR": str(tmp_path)}
    (out,) = run_job(tmp_path, [WORKER], devices=RANKS, **settings)
    last = SIZE // RANKS - 1
    assert f"holds NaN, first at element {last}" in out, out
    assert "its epilogue made it or was given it" in out, out
    assert re.search("the epilogue's new state 2 of rank .* holds infinity, first at element 0,", out), out
