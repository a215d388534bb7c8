"""Jobs that go on after processes were lost."""

from __future__ import annotations

import pathlib

import pytest

from tests.collectives.cases.coll_jobs import run_job

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("nothing_left")]

HERE = pathlib.Path(__file__).parent


def test_a_job_survives_aborts_kills_and_rebuilds(tmp_path):
    script = HERE / "recovery_job.py"
    code, output = run_job(script, 3, 2, str(tmp_path), options=("--restart", "3", "--restart-delay", "0"))
    assert code == 0, output[-6000:]
    assert len(list(tmp_path.glob("done *"))) == 3, output[-6000:]
    assert output.count("it is started again") == 3
